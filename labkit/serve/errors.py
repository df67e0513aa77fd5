"""What a client is told when a request can't be served, in the shape of OpenAI's errors."""

from typing import Any

from labkit.errors import TOO_LONG, LabkitError, OverloadedError, RequestError, StreamError

RETRY_AFTER = 1  # seconds: many requests end in one


class ApiError(LabkitError):
    """An error with its HTTP status. param: the field of the request that is wrong, if one is."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def body(self) -> dict[str, Any]:
        """The reply's body: {"error": {"message", "type", "param", "code"}}."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the status."""
        return {"Retry-After": str(RETRY_AFTER)} if self.status in (429, 503) else {}


KINDS = {401: "authentication_error", 429: "rate_limit_error"}


def api_error(error: BaseException) -> ApiError:
    """The same error for a client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, OverloadedError):
        return ApiError(429, str(error), code="server_overloaded")
    if isinstance(error, RequestError):
        message = str(error).replace("max_new_tokens", "max_tokens")
        if error.code == TOO_LONG:  # the words by which clients' libraries know it
            message += "; this model's maximum context length is exceeded"
        return ApiError(400, message, code=error.code)
    if isinstance(error, StreamError):
        return ApiError(503, str(error))
    return ApiError(500, f"{type(error).__name__}: {error}")
