"""Who may talk to the server: addresses, the token, and pages of other sites."""

import hashlib
import hmac
import ipaddress
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from prover.errors import UnreadableFile, UsageError, reason_of
from prover.service.refusal import Refusal

TOKEN_VARIABLE = "PROVER_TOKEN"
_LEAST = 16
"""Characters of a token: fewer can be guessed."""
_MOST = 1024


def addresses(host: str) -> list[str]:
    """The numeric addresses of a host to listen at.

    Raises
    ------
    UsageError
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"--host {host}: is no address of this machine") from None
    return sorted({str(address[0]) for *_, address in found})


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches a numeric address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def read_token(path: Path | None) -> str | None:
    """The token in a file, else in the environment, from which no child inherits it; else None.

    What this process was started with stays in /proc/PID/environ, for its own user and root.

    Raises
    ------
    UnreadableFile, UsageError
    """
    source, token = f"${TOKEN_VARIABLE}", os.environ.pop(TOKEN_VARIABLE, None)
    if path is not None:
        source = str(path)
        try:
            with path.open("rb") as file:
                token = file.read(_MOST + 3).decode("latin-1").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise UnreadableFile(path, f"cannot be read: {reason_of(error)}") from None
    if token is None:
        return None
    if not _LEAST <= len(token) <= _MOST or not all("!" <= c <= "~" for c in token):
        raise UsageError(
            f"{source}: a token is one line of {_LEAST} to {_MOST} visible ASCII characters; make "
            "one with: openssl rand -hex 32"
        )
    return token


class Guard:
    """Refuses requests without the token, or, where none is needed, those of other sites' pages.

    Parameters
    ----------
    token
        What requests must carry; None for a server that only this machine reaches.
    """

    def __init__(self, token: str | None) -> None:
        self.needs_token = token is not None
        self._digest = _digest((token or "").encode())

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a request by its headers.

        Raises
        ------
        Refusal
        """
        if self.needs_token:
            self._check_token(headers.get("Authorization", ""))
        else:
            _check_site(headers.get("Host", ""), headers.get("Origin"))

    def _check_token(self, authorization: str) -> None:
        scheme, _, token = authorization.partition(" ")
        # Digests are of one length, so that the time tells nothing of the token's.
        digest = _digest(token.strip().encode("utf-8", "surrogateescape"))
        if not hmac.compare_digest(digest, self._digest) or scheme.lower() != "bearer":
            raise Refusal(
                401,
                "a token is needed: Authorization: Bearer TOKEN",
                WWW_Authenticate='Bearer realm="prover"',
            )


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _check_site(host: str, origin: str | None) -> None:
    """Let a browser on this machine serve no other site.

    A page elsewhere can have its own name lead to this machine, or send forms here; both show in
    headers that a page cannot choose.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
        local = name == "localhost" or is_loopback(name)
    except ValueError:
        local = False
    if not local:
        raise Refusal(403, "without a token, this server answers to localhost only")
    if origin is not None and origin != f"http://{host}":
        raise Refusal(403, "without a token, this server answers to no page of another site")
