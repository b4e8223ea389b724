pragma circom 2.1.6;

include "hash.circom";

// Asserts 0 <= in < 2^n.
template InRange(n) {
    signal input in;

    signal bit[n];
    var sum = 0;
    for (var i = 0; i < n; i++) {
        bit[i] <-- (in >> i) & 1;
        bit[i] * (bit[i] - 1) === 0;
        sum += bit[i] * (1 << i);
    }
    sum === in;
}

// The root of a Merkle tree from a leaf, its siblings and its position, bit by bit from below.
template MerkleRoot(depth) {
    signal input leaf;
    signal input sibling[depth];
    signal input position[depth];
    signal output root;

    component node[depth];
    signal left[depth];
    for (var i = 0; i < depth; i++) {
        var below = i == 0 ? leaf : node[i - 1].out;
        position[i] * (position[i] - 1) === 0;
        left[i] <== below + position[i] * (sibling[i] - below);
        node[i] = Compress();
        node[i].left <== left[i];
        node[i].right <== below + sibling[i] - left[i];
    }
    root <== node[depth - 1].out;
}

// "I am one of the members of this registry, my recorded payments add up to at least `threshold`,
// and none of them exceeds `limit`": without saying which member, or what the payments were.
//
// A member's leaf binds a secret to the payments. The nullifier is the same whenever the same
// member proves in the same context, so that nobody counts twice, and tells nothing else.
// Amounts have `width` bits; `packed` of them share one field element when they are hashed.
template Membership(depth, payments, width, packed) {
    signal input root;
    signal input context;
    signal input threshold;
    signal input limit;

    signal input secret;
    signal input payment[payments];
    signal input sibling[depth];
    signal input position[depth];

    signal output nullifier;

    assert(payments % packed == 0);
    assert(packed * width < 253);
    var blocks = payments / packed;

    component record = Digest(blocks);
    var total = 0;
    for (var b = 0; b < blocks; b++) {
        var block = 0;
        for (var i = b * packed; i < (b + 1) * packed; i++) {
            InRange(width)(payment[i]);
            InRange(width)(limit - payment[i]);
            block += payment[i] * (1 << (width * (i % packed)));
            total += payment[i];
        }
        record.in[b] <== block;
    }
    // payments < 2^8, so that neither the sum nor the difference can wrap around.
    assert(payments < 256);
    InRange(width + 8)(threshold);
    InRange(width + 8)(total - threshold);

    signal leaf <== Digest(2)([secret, record.out]);
    signal computed <== MerkleRoot(depth)(leaf, sibling, position);
    computed === root;

    nullifier <== Digest(2)([secret, context]);
}

component main {public [root, context, threshold, limit]} = Membership(20, 120, 40, 6);
