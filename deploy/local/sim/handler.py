"""Answers requests for resources: verbs on collections, objects and subresources."""

from __future__ import annotations

from functools import partial
from typing import Any

import yaml

from deploy.local.sim import errors, managed, patches, subresources
from deploy.local.sim.core import Core
from deploy.local.sim.deletes import Options, delete, removed_status
from deploy.local.sim.objects import encode
from deploy.local.sim.reads import list_page, make_filter, parse_version
from deploy.local.sim.represent import JSON, Form, Frames, negotiate, render, render_list
from deploy.local.sim.requests import Answer, Request, Response, Target, WatchResponse, decode_body
from deploy.local.sim.store import State
from deploy.local.sim.types import Object, ResourceType
from deploy.local.sim.watches import open_watch
from deploy.local.sim.writes import Writing, create, replace, update

#: A watch without timeoutSeconds ends after a time between this and twice this, as on a real server.
MIN_WATCH_SECONDS = 1800.0
_PUT_SUBRESOURCES = ("status", "finalize", "approval", "resize", "ephemeralcontainers")


class Handler:
    """Requests to one cluster's resources. Raises Refused; nothing is half done."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def handle(self, request: Request, target: Target) -> Answer:
        type_ = self._core.catalog.find(target.group, target.version, target.plural)
        if type_ is None or (target.namespace is not None and not type_.namespaced):
            raise errors.no_such_resource()
        if target.sub and target.sub.partition("/")[0] not in type_.subresources:
            raise errors.no_such_resource()
        form = negotiate(request.accept, request.query.get("includeObject", ""))
        if target.sub and target.sub not in _PUT_SUBRESOURCES:
            return subresources.handle(self._core, type_, request, target, form)
        if not target.name:
            return self._collection(type_, request, target, form)
        return self._object(type_, request, target, form)

    def _collection(self, type_: ResourceType, request: Request, target: Target, form: Form) -> Answer:
        method = request.method
        if method == "POST" and (target.namespace is not None or not type_.namespaced):
            return self._create(type_, request, target, form)
        if method in ("GET", "HEAD") and "list" in type_.verbs:
            if "watch" in request.query and request.watches:
                return self._watch(type_, request, target, form)
            wanted = make_filter(type_, target.namespace, None, request.query)
            page = list_page(self._core.store, self._core.collection(type_), wanted, request.query)
            return self._answer(200, render_list(type_, page, form, self._core.timers.now()), form)
        if (
            method == "DELETE"
            and "deletecollection" in type_.verbs
            and (target.namespace or not type_.namespaced)
        ):
            return self._delete_collection(type_, request, target, form)
        raise errors.method_not_allowed()

    def _watch(self, type_: ResourceType, request: Request, target: Target, form: Form) -> WatchResponse:
        wanted = make_filter(type_, target.namespace, target.name or None, request.query)
        watch = open_watch(self._core.store, self._core.collection(type_), wanted, request.query)
        text = request.query.get("timeoutSeconds", "")
        timeout = float(text) if text.isdigit() and int(text) else 0.0
        if not timeout:
            timeout = MIN_WATCH_SECONDS * (1 + self._core.random.random())
        return WatchResponse(watch, Frames(type_, form, self._core.timers.now), timeout)

    def _object(self, type_: ResourceType, request: Request, target: Target, form: Form) -> Answer:
        method, core = request.method, self._core
        if type_.namespaced and target.namespace is None:
            raise errors.no_such_resource()
        if method in ("GET", "HEAD") and "get" in type_.verbs:
            if "watch" in request.query and request.watches:
                return self._watch(type_, request, target, form)
            version = parse_version(request.query.get("resourceVersion", ""))
            if version > core.store.revision:
                raise errors.too_large_version(version, core.store.revision)
            return self._one(200, type_, core.get(type_, target.namespace, target.name), form)
        if method == "PUT" and "update" in type_.verbs:
            body = self._body(request)
            state, made = replace(
                core, type_, target.namespace, target.name, body, self._how(request), sub=target.sub
            )
            return self._one(201 if made else 200, type_, state, form)
        if method == "PATCH" and "patch" in type_.verbs:
            return self._patch(type_, request, target, form)
        if method == "DELETE" and "delete" in type_.verbs and not target.sub:
            return self._delete(type_, request, target, form)
        raise errors.method_not_allowed()

    def _how(self, request: Request) -> Writing:
        dry_run = request.query.get("dryRun", "")
        if dry_run not in ("", "All"):
            text = f'Unsupported value: ["{dry_run}"]: supported values: "All"'
            cause = errors.Cause("FieldValueNotSupported", "dryRun", text)
            kinds = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}
            raise errors.invalid("meta.k8s.io", kinds[request.method], "", [cause])
        return Writing(request.manager, bool(dry_run), request.query.get("fieldValidation") or "Warn")

    def _body(self, request: Request) -> Object:
        body = request.decoded()
        if not isinstance(body, dict):
            raise errors.bad_request("couldn't get version/kind; json parse error: the body is not an object")
        return body

    def _create(self, type_: ResourceType, request: Request, target: Target, form: Form) -> Answer:
        if "create" not in type_.verbs:
            raise errors.method_not_allowed()
        body = self._body(request)
        virtual = subresources.virtual(self._core, type_, request, target, body)
        if virtual is not None:
            return virtual
        state = create(self._core, type_, target.namespace, body, self._how(request))
        return self._one(201, type_, state, form)

    def _patch(self, type_: ResourceType, request: Request, target: Target, form: Form) -> Answer:
        core, kind = self._core, request.content_type
        if kind not in patches.accepted(type_):
            known = (*patches.accepted(type_), patches.STRATEGIC_PATCH)
            raise (
                errors.unsupported_media_type(patches.accepted(type_))
                if kind in known
                else errors.no_such_patch()
            )
        try:
            body = decode_body(request.body, kind)
        except errors.Refused:
            raise errors.bad_request("error decoding patch: unexpected end of JSON input") from None
        how = self._how(request)
        if kind == patches.APPLY_PATCH:
            return self._apply(type_, request, target, form, body)

        def change(obj: Object) -> Object:
            return patches.patch(type_, obj, kind, body)

        state = update(core, type_, target.namespace, target.name, change, how, sub=target.sub)
        return self._one(200, type_, state, form)

    def _apply(self, type_: ResourceType, request: Request, target: Target, form: Form, body: Any) -> Answer:
        core, query = self._core, request.query
        if not query.get("fieldManager"):
            cause = errors.Cause(
                "FieldValueRequired", "fieldManager", "Required value: is required for apply patch"
            )
            raise errors.invalid("meta.k8s.io", "PatchOptions", "", [cause])
        if not isinstance(body, dict):
            raise errors.bad_request("error decoding YAML: the body is not an object")
        meta = body.setdefault("metadata", {})
        if meta.get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        how = Writing(query["fieldManager"], query.get("dryRun") == "All", apply=True)
        force = query.get("force") in ("true", "1")
        applied = partial(
            managed.apply,
            type_,
            wanted=body,
            manager=how.manager,
            force=force,
            time=core.now(),
            sub=target.sub,
        )
        if meta.get("name", target.name) != target.name:
            raise errors.bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({target.name})"
            )
        if core.find(type_, target.namespace, target.name) is None:
            if target.sub:
                raise errors.not_found(type_.group, type_.plural, target.name)
            if meta.get("uid"):
                why = f"uid mismatch: the provided object specified uid {meta['uid']}, and no existing object was found"
                raise errors.conflict(type_.group, type_.plural, target.name, why)
            meta["name"] = target.name
            empty: Object = {"metadata": {}}
            fresh = applied(live=empty)
            fresh["metadata"].update(
                {k: v for k, v in meta.items() if k in ("name", "namespace", "resourceVersion")}
            )
            return self._one(201, type_, create(core, type_, target.namespace, fresh, how), form)

        def change(obj: Object) -> Object:
            merged = applied(live=obj)
            for name in ("resourceVersion", "uid"):
                if meta.get(name):
                    merged["metadata"][name] = meta[name]
            return merged

        state = update(core, type_, target.namespace, target.name, change, how, sub=target.sub, owned=True)
        return self._one(200, type_, state, form)

    def _options(self, request: Request) -> Options:
        body = request.decoded() if request.body.strip() else {}
        return Options.read(body if isinstance(body, dict) else {}, request.query)

    def _delete(self, type_: ResourceType, request: Request, target: Target, form: Form) -> Answer:
        state, gone = delete(self._core, type_, target.namespace, target.name, self._options(request))
        if gone and not type_.returns_deleted:
            return self._answer(200, encode(removed_status(type_, state)) + b"\n", form)
        return self._one(200, type_, state, form)

    def _delete_collection(self, type_: ResourceType, request: Request, target: Target, form: Form) -> Answer:
        core = self._core
        options = self._options(request)
        wanted = make_filter(type_, target.namespace, None, request.query)
        page = list_page(core.store, core.collection(type_), wanted, {})
        for state in page.states:
            delete(core, type_, target.namespace, state.name, options)
        return self._answer(200, render_list(type_, page, form, core.timers.now()), form)

    def _one(self, status: int, type_: ResourceType, state: State, form: Form) -> Response:
        return self._answer(status, render(type_, state, form, self._core.timers.now()) + b"\n", form)

    def _answer(self, status: int, body: bytes, form: Form) -> Response:
        return answer(status, body, form)


def answer(status: int, body: bytes, form: Form) -> Response:
    """A whole answer in the form asked for."""
    if form.kind == "yaml":
        return Response(status, yaml.safe_dump(decode_body(body, JSON)).encode(), form.content_type)
    return Response(status, body)
