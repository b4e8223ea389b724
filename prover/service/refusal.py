"""A request that is refused."""


class Refusal(Exception):
    """A request that is refused: an HTTP status, a reason in one line, and headers."""

    def __init__(self, status: int, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
