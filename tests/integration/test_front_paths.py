"""Raw paths through a running front: nothing reaches a member but what a review allowed, the host judges by itself."""

from __future__ import annotations

import random
from typing import Any

from yarl import URL

from tests.integration.front_fakes import FakeCluster, cluster, front
from tests.kube.front_rig import PODS, OneMember
from tests.unit.path_model import Place, place_of, unescape

WORDS = ["api", "v1", "namespaces", "pods", "watch", "proxy", "web", "kube-system", "exec", "status", "clusters", "east",
         "west", ".", "..", "", "w?b", "w#b", "é", "a\\b", "a\x00b", "a%b", "pods;x", "namespaces/kube-system"]  # fmt: skip
HEADS = ["/api/v1/namespaces/", "/api/v1/", "/api/v1/namespaces/web/pods/", "/api/v1/namespaces/%77eb/%70ods/", "/clusters/east/", "/clusters/east/api/v1/namespaces/", "/", "//", "/clusters/", "/clusters//"]
JOINTS = ["/", "/", "/", "//", "%2F", "%252f", "/%2e%2e/", "\\", ";"]
COUNT = 600


def written(rng: random.Random) -> str:
    def one(word: str) -> str:
        data, how = word.encode(), rng.randrange(4)
        if how == 0:
            return "".join(chr(b) if 32 < b < 127 and chr(b) not in "?#%" else f"%{b:02X}" for b in data)
        once = "".join(f"%{b:02x}" for b in data)
        return once if how < 3 else once.replace("%", "%25")

    joint = rng.choice(JOINTS)
    return rng.choice(HEADS) + joint.join(one(rng.choice(WORDS)) for _ in range(rng.randint(1, 6))) + rng.choice(["", "", "/", "//", "%"])


def judged(spec: dict[str, Any]) -> Place | None:
    found = spec.get("resourceAttributes")
    if not found:
        return None
    return Place(*(found.get(key, "") for key in ("group", "version", "namespace", "resource", "name", "subresource")))


def is_document(target: str) -> bool:
    return target in ("/api", "/apis") or target.startswith("/openapi/")


async def test_what_was_reviewed_is_what_is_sent() -> None:
    rng = random.Random(20261130)
    host, east = FakeCluster(), FakeCluster()
    host.allow = lambda spec: True
    reached = {"host": 0, "aggregated": 0, "direct": 0}
    async with cluster(host) as at_host, cluster(east, "east") as at_east, front(at_host, OneMember("east", at_east, [PODS])) as up:
        for _ in range(COUNT):
            raw, method = written(rng), rng.choice(["GET", "PUT", "DELETE"])
            up.running._authorizer._cache._values.clear()
            for fake in (host, east):
                fake.requests.clear()
                fake.reviews.clear()
            url = URL(f"http://127.0.0.1:{up.port}{raw}", encoded=True)
            headers = {"Authorization": "Bearer alice-token"}
            async with up.session.request(method, url, headers=headers) as answer:
                await answer.read()
            sent = [request.raw_path.partition("?")[0] for request in east.requests]
            if sent and raw.lstrip("/").startswith("clusters/east"):
                attributes = host.reviews[-1]["resourceAttributes"]
                assert (attributes["resource"], attributes["subresource"], attributes["name"]) == ("clusters", "proxy", "east"), raw
                assert sent == ["/" + "/".join(raw.lstrip("/").split("/")[2:])], raw
                reached["direct"] += 1
            elif places := [place for target in sent if (place := place_of(target)) is not None]:
                assert [judged(spec) for spec in host.reviews] == places, raw
                reached["aggregated"] += 1
            else:  # what the front itself reads to merge documents
                assert all(is_document(target) for target in sent), (raw, sent)
            for request in host.requests:
                if request.path.endswith("reviews") or (
                    "Impersonate-User" not in request.headers and is_document(request.raw_path) and request.method == "GET"
                ):
                    continue
                assert request.headers["Impersonate-User"] == "alice", raw
                assert unescape(request.raw_path.partition("?")[0]) == unescape(raw), raw
                reached["host"] += 1
    assert min(reached.values()) > 20, reached
