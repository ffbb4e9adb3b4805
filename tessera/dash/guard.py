"""Who may ask the dashboard, and what browsers may do with its answers."""

from __future__ import annotations

import hashlib
import hmac
import sys
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tessera.dash.values import to_json

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "media-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer: nothing runs but the page's own script, nothing is loaded from elsewhere, and nothing is kept."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
YEAR = 365 * 24 * 3600


def refusal(status: int, sentence: str) -> Response:
    """The answer to a request that is refused."""
    return Response(to_json({"error": sentence}), status, media_type="application/json")


class AccessGuard:
    """Lets through what reads, comes by a name of this machine, and knows the token if there is one."""

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        """Without a token the server listens on loopback only. There a page from elsewhere could still reach it by a
        name of its own that leads to this machine (DNS rebinding), so the name in the request is checked."""
        self._app = app
        self._names = None if token else {*LOOPBACK_NAMES, host, f"[{host}]"}
        self._secret = token and hashed(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse to."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refused(Request(scope)) or self._app
        try:
            await answer(scope, receive, send_with_headers)
        except Exception as error:  # it has been answered: one page that cannot be read is no reason to end
            print(f"tessera dash: {scope['path']!a}: {type(error).__name__}: {error}", file=sys.stderr)

    def _refused(self, request: Request) -> Response | None:
        """An answer in place of the app's; None if that may answer."""
        if request.method not in ("GET", "HEAD"):
            return refusal(405, "the dashboard only reads: use GET")
        name = without_port(request.headers.get("host", ""))
        if self._names is not None and name not in self._names:
            return refusal(403, f"this dashboard answers to {LOOPBACK_NAMES[0]} and 127.0.0.1 only")
        if self._secret is None:
            return None
        cookie = f"tessera-dash-{(scope_port(request))}"
        if same(request.cookies.get(cookie, ""), self._secret):
            return None
        if same(hashed(request.query_params.get("token", "")), self._secret):
            rest = [(key, value) for key, value in request.query_params.multi_items() if key != "token"]
            answer = RedirectResponse("/" + ("?" + urlencode(rest) if rest else ""), 303)
            answer.set_cookie(cookie, self._secret, max_age=YEAR, httponly=True, samesite="strict")
            return answer
        return refusal(403, "this dashboard needs its token: open the address that `tessera dash` printed")


def same(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that does not tell how much of them is."""
    return hmac.compare_digest(one.encode(), other.encode())


def hashed(token: str) -> str:
    """What a cookie holds in the place of a token."""
    return hashlib.sha256(b"tessera-dash " + token.encode("utf-8", "replace")).hexdigest()


def without_port(host: str) -> str:
    """The name in a Host header."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).lower()


def scope_port(request: Request) -> int:
    """The port that the server listens on: cookies of all ports of a machine are kept together."""
    server = request.scope.get("server") or (None, 0)
    return int(server[1] or 0)
