"""A small OpenID provider over HTTP. Every user who signs in gets the claims that the test chooses."""

import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import msgspec
from joserfc import jwt
from joserfc.jwk import RSAKey


class Provider:
    def __init__(self) -> None:
        self.client, self.secret = "dashboard", "known to both"
        self.issuer = ""
        #: The claims of the next user who signs in, and wrong values for the token itself.
        self.claims: dict[str, Any] = {"sub": "ada", "groups": ["people"]}
        self.wrong: dict[str, Any] = {}
        #: Sign with another key than the published one.
        self.forged = False
        self.away = False
        self._key = RSAKey.generate_key(2048, {"kid": "one", "alg": "RS256", "use": "sig"})
        self._other = RSAKey.generate_key(2048, {"kid": "one", "alg": "RS256", "use": "sig"})
        self._codes: dict[str, dict[str, str]] = {}

    @contextmanager
    def serving(self) -> Iterator["Provider"]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                if provider.away:
                    self._answer(503, b"{}")
                elif parts.path == "/.well-known/openid-configuration":
                    self._answer(200, msgspec.json.encode(provider.document()))
                elif parts.path == "/keys":
                    self._answer(200, msgspec.json.encode({"keys": [provider._key.as_dict(private=False)]}))
                elif parts.path == "/authorize":
                    self.send_response(303)
                    self.send_header("location", provider.let_in(query))
                    self.end_headers()
                else:
                    self._answer(404, b"{}")

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", "0"))
                form = {name: values[0] for name, values in parse_qs(self.rfile.read(size).decode()).items()}
                token = provider.exchange(form, self.headers.get("authorization", ""))
                if token is None:
                    self._answer(400, b'{"error": "invalid_grant"}')
                else:
                    self._answer(200, msgspec.json.encode({"id_token": token, "token_type": "Bearer"}))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def document(self) -> dict[str, str]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    def let_in(self, query: dict[str, str]) -> str:
        """Check a request to sign in; the address to redirect to, with a code."""
        assert query["response_type"] == "code"
        assert query["client_id"] == self.client
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, form: dict[str, str], authorization: str) -> str | None:
        """Exchange a code for a token. A code works once, with the secrets of the client that asked for it."""
        asked = self._codes.pop(form.get("code", ""), None)
        pair = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if asked is None or (unquote(pair[0]), unquote(pair[2])) != (self.client, self.secret):
            return None
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return None
        if form["redirect_uri"] != asked["redirect_uri"]:
            return None
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": self.client, "exp": now + 300, "iat": now, "nonce": asked["nonce"]}
        key = self._other if self.forged else self._key
        return jwt.encode({"alg": "RS256", "kid": "one"}, {**claims, **self.claims, **self.wrong}, key)
