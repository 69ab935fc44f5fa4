"""The HTTP side of an API server: authentication, routing and answers."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from . import discovery, managed_fields, refusals
from .api_resources import Catalog, Json, Place
from .object_store import Change, Store
from .refusals import Refused, RefusedInText
from .rights import Rights
from .selection import Selection, selection
from .verbs import Request, Verbs
from .watches import Watches

ANONYMOUS = "system:anonymous"
#: k8s.io/apiserver pkg/server/config.go
BODY_LIMIT = 3 << 20
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
YES = ("true", "1")


class Serving:
    """The state that outlives every outage: objects, rules of watches, rights, and all requests so far."""

    def __init__(self, catalog: Catalog, user: str, token: str, seed: int) -> None:
        self.catalog = catalog
        self.user = user
        self.token = token
        self.store = Store(self._changed)
        self.watches = Watches(self.store)
        self.rights = Rights()
        self.requests: list[Request] = []
        #: The errors that answer the next requests, one each, whatever the request.
        self.failing: list[Refused | RefusedInText] = []
        #: Cleared while no request is answered.
        self.answers = asyncio.Event()
        self.answers.set()
        self._verbs = Verbs(self.store, random.Random(seed))
        self._noted = asyncio.Event()

    async def next_note(self) -> None:
        """Wait for the next request, change of an object, or begin or end of a watch."""
        await self._noted.wait()

    def _changed(self, change: Change) -> None:
        self.watches.tell(change)
        self._note()

    def _note(self) -> None:
        noted, self._noted = self._noted, asyncio.Event()
        noted.set()

    async def answer(self, http: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answered(http)
        except Refused as exc:
            return _json(exc.code, exc.body, exc.headers)
        except RefusedInText as exc:
            return web.Response(status=exc.code, text=exc.text, headers=exc.headers)
        except ConnectionError:
            return web.Response()  # the client has gone

    async def _answered(self, http: web.BaseRequest) -> web.StreamResponse:
        body = await _read(http)
        place = self.catalog.place(http.path)
        by = http.query.get("fieldManager") or managed_fields.manager(http.headers.get("User-Agent", ""))
        request = Request(_verb(http, place), http.path, dict(http.query), body, http.content_type, by)
        await self.answers.wait()
        self.requests.append(request)
        self._note()
        user = self._authenticated(http)
        if self.failing:
            raise self.failing.pop(0)
        if place is None:
            return self._elsewhere(request, user)
        wanted = selection(place.resource, place.namespace, request.query)
        self._authorize(request.verb, place, wanted, user)
        if request.verb == "watch":
            return await self._watched(http, wanted)
        answer = self._verbs.answer(place, request, wanted)
        return _json(answer.code, answer.body)

    def _authenticated(self, http: web.BaseRequest) -> str:
        """The user of the request; the anonymous user where the request has no token.

        Raises:
            Refused: The token is wrong.
        """
        header = http.headers.get("Authorization")
        if header is None:
            return ANONYMOUS
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(token.encode(), self.token.encode()):
            raise refusals.unauthorized()
        return self.user

    def _authorize(self, verb: str, place: Place, wanted: Selection, user: str) -> None:
        """A selector that leaves one name stands for that name."""
        asked = Place(place.resource, place.namespace, place.name or wanted.name, place.subresource)
        if user != self.user or self.rights.refuses(verb, asked):
            raise refusals.forbidden(user, verb, asked)

    def _elsewhere(self, request: Request, user: str) -> web.Response:
        path = request.path
        if user != self.user and path not in discovery.PUBLIC:
            raise refusals.forbidden_path(user, request.verb, path)
        if path in discovery.HEALTH:
            return web.Response(text="ok")
        if path == "/version":
            return _json(200, discovery.VERSION)
        if path == REVIEWS and request.verb == "create":
            return _json(201, self.rights.reviewed(request.body or {}, self.catalog))
        if (found := discovery.discovered(self.catalog, path)) is not None:
            return _json(200, found)
        raise refusals.no_such_resource() if self.catalog.knows(path) else refusals.no_such_group()

    async def _watched(self, http: web.BaseRequest, wanted: Selection) -> web.StreamResponse:
        watch = self.watches.open(wanted, http.query)
        self._note()
        seconds = int(http.query.get("timeoutSeconds") or 0)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self.watches.time_out, watch) if seconds else None
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await stream.prepare(http)
            async for event in watch.events():
                await stream.write(json.dumps(event).encode() + b"\n")
            await stream.write_eof()
        finally:
            self.watches.close(watch)
            self._note()
            if timer is not None:
                timer.cancel()
        return stream


def _verb(http: web.BaseRequest, place: Place | None) -> str:
    if http.method != "GET":
        return VERBS.get(http.method, http.method.lower())
    if place is None or place.name:
        return "get"
    return "watch" if http.query.get("watch") in YES else "list"


async def _read(http: web.BaseRequest) -> Any:
    """The body as JSON; None where there is none."""
    body = b""
    async for chunk in http.content.iter_any():
        body += chunk
        if len(body) > BODY_LIMIT:
            raise refusals.too_large(BODY_LIMIT)
    try:
        return json.loads(body) if body else None
    except ValueError as exc:
        raise refusals.bad_request(f"error decoding body: {exc}") from exc


def _json(code: int, body: Json, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response(body, status=code, headers=headers)
