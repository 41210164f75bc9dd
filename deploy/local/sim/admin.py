"""Faults and events on request, over HTTP, for processes that cannot reach the world in Python.

POST /sim/<cluster>/<action> with a JSON body of the action's parameters; see `ACTIONS`. GET /sim lists the clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from deploy.local.sim.cluster import Cluster
from deploy.local.sim.faults import Rule
from deploy.local.sim.schedule import Schedule
from deploy.local.sim.world import World

PREFIX = "/sim"


def _backup(cluster: Cluster, _: dict[str, Any]) -> dict[str, Any]:
    cluster.kept = cluster.backup()
    return {"revision": cluster.kept.revision}


def _restore(cluster: Cluster, _: dict[str, Any]) -> dict[str, Any]:
    if cluster.kept is None:
        raise ValueError("there is no backup: POST …/backup first")
    cluster.restore(cluster.kept)
    return {"revision": cluster.revision}


def _fault(cluster: Cluster, given: dict[str, Any]) -> dict[str, Any]:
    cluster.faults.add(Rule.read(given))
    return {"rules": len(cluster.faults.rules)}


def _lift(cluster: Cluster, _: dict[str, Any]) -> dict[str, Any]:
    cluster.faults.lift()
    cluster.find_network()
    cluster.healthy = True
    return {"met": cluster.faults.met}


def _schedule(cluster: Cluster, given: dict[str, Any]) -> dict[str, Any]:
    schedule = Schedule(cluster, seed=int(given.get("seed", 0)), seconds=float(given.get("seconds", 5)))
    schedule.start()
    return {"seed": schedule.seed}


def _unhealthy(cluster: Cluster, _: dict[str, Any]) -> None:
    cluster.healthy = False


Action = Callable[[Cluster, dict[str, Any]], dict[str, Any] | None]

ACTIONS: dict[str, Action] = {
    "drop-watches": lambda cluster, given: {"dropped": cluster.drop_watches(given.get("resource", ""))},
    "compact": lambda cluster, given: cluster.compact(given.get("revision")),
    "bookmark": lambda cluster, _: cluster.bookmark(),
    "restart": lambda cluster, _: cluster.restart(),
    "reincarnate": lambda cluster, _: cluster.reincarnate(),
    "backup": _backup,
    "restore": _restore,
    "lose-network": lambda cluster, _: cluster.lose_network(),
    "find-network": lambda cluster, _: cluster.find_network(),
    "unhealthy": _unhealthy,
    "fault": _fault,
    "lift": _lift,
    "schedule": _schedule,
}


async def serve(world: World, http: web.Request) -> web.Response:
    """Answers {"revision", "uid", …} of the cluster after the action; 400 with {"error"} for what cannot be done."""
    parts = http.path.removeprefix(PREFIX).strip("/").split("/")
    if http.method == "POST" and len(parts) == 2 and parts[1] in ("add", "remove"):
        return await _membership(world, http, parts[0], parts[1])
    if http.method == "GET":
        return _json(200, {name: describe(cluster) for name, cluster in world.clusters.items()})
    if len(parts) != 2 or parts[0] not in world.clusters or parts[1] not in ACTIONS:
        said = f"POST {PREFIX}/<cluster>/<action>; clusters: {len(world.clusters)}, actions: {', '.join(ACTIONS)}"
        return _json(404, {"error": said})
    cluster = world.clusters[parts[0]]
    body = await http.read()
    try:
        given = msgspec.json.decode(body) if body.strip() else {}
        done = ACTIONS[parts[1]](cluster, given) or {}
    except (ValueError, TypeError, AttributeError) as error:
        return _json(400, {"error": str(error)})
    return _json(200, {**describe(cluster), **done})


async def _membership(world: World, http: web.Request, name: str, action: str) -> web.Response:
    """`add`: {"nodes", "role"}; `remove`."""
    if (name in world.clusters) == (action == "add"):
        return _json(409, {"error": f"there is {'a' if action == 'add' else 'no'} cluster {name}"})
    if action == "remove":
        world.remove(name)
        return _json(200, {})
    given = msgspec.json.decode(await http.read() or b"{}")
    cluster = world.add(
        name,
        nodes=int(given.get("nodes", 2)),
        role=given.get("role", "member"),
    )
    return _json(200, describe(cluster))


def describe(cluster: Cluster) -> dict[str, Any]:
    """What `deploy.local.ctl` shows of a simulated cluster."""
    return {
        "revision": cluster.revision,
        "uid": cluster.uid,
        "watches": len(cluster.watches),
        "requests": cluster.requests,
        "rules": len(cluster.faults.rules),
        "faulty": cluster.faults.met,
    }


def _json(status: int, body: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
