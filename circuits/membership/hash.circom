pragma circom 2.1.6;

include "round_constants.circom";

// x -> x^5, a permutation of the field because 5 does not divide r - 1 (on BN254 and BLS12-381).
template FifthPower() {
    signal input in;
    signal output out;

    signal square <== in * in;
    signal fourth <== square * square;
    out <== fourth * in;
}

// A block cipher in the manner of MiMC (Albrecht, Grassi, Rechberger, Roy and Tiessen, 2016):
// x -> (x + key + c_i)^5 in every round, the key once more at the end.
// 110 rounds, since 5^110 > r.
template Cipher() {
    var rounds = 110;
    signal input key;
    signal input in;
    signal output out;

    component round[rounds];
    for (var i = 0; i < rounds; i++) {
        round[i] = FifthPower();
        round[i].in <== (i == 0 ? in : round[i - 1].out) + key + round_constant(i);
    }
    out <== round[rounds - 1].out + key;
}

// The compression function of Miyaguchi and Preneel over the cipher: keyed by the left input.
template Compress() {
    signal input left;
    signal input right;
    signal output out;

    component cipher = Cipher();
    cipher.key <== left;
    cipher.in <== right;
    out <== cipher.out + left + right;
}

// A chain of compressions, begun with the length so that no message is another's prefix.
template Digest(n) {
    signal input in[n];
    signal output out;

    component step[n];
    for (var i = 0; i < n; i++) {
        step[i] = Compress();
        step[i].left <== i == 0 ? n : step[i - 1].out;
        step[i].right <== in[i];
    }
    out <== step[n - 1].out;
}
