"""What one sees of a running fleet: the dashboards' metrics, `reclock top`."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from typing import Any

from tests.kube.session.test_drain import reclock
from tests.kube.session.test_operations import SERVICES, addresses
from tests.kube.session.tools import Kubectl, RunningFleet, eventually
from tests.unit import dashboards


def exported(fleet: RunningFleet) -> set[str]:
    """Metrics of all services, also those that have no value yet."""
    found: set[str] = set()
    for service in SERVICES:
        with urllib.request.urlopen(f"http://{addresses(fleet, service)['httpAddress']}/metrics", timeout=10) as answer:
            found |= set(re.findall(r"^# TYPE (\w+)", answer.read().decode(), re.MULTILINE))
    return found


def test_services_export_what_the_dashboards_ask_for(fleet: RunningFleet) -> None:
    there = exported(fleet)
    for file in dashboards.FILES:
        asked = {one.metric for query in dashboards.queries(dashboards.load(file)) for one in dashboards.named(query.expression)}
        assert {dashboards.family(metric) for metric in asked} <= there, file.name


def test_top_shows_members_watches_and_what_is_sent(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("run", "seen", "--image=example/web:1")
    watch = kubectl.start("get", "pods", "--watch", "-o", "name")
    done = threading.Event()

    def change() -> None:
        number = 0
        while not done.is_set():
            number += 1
            kubectl.run("label", "pod", "seen", f"number={number}", "--overwrite")

    changing = threading.Thread(target=change)
    changing.start()

    def sent() -> dict[str, Any] | None:
        answer = reclock(fleet, "top", "-r", "pods", "-o", "json", "--interval", "2")
        assert answer.code == 0, answer
        [found] = json.loads(answer.out)["resources"]
        rate = sum(one["deliveriesPerSecond"] for one in found["members"])
        return found if found["watchers"] and rate and found["commitSeconds"] else None

    try:
        pods = eventually(sent, 60)
    finally:
        done.set()
        changing.join()
        watch.kill()
        watch.communicate()
    assert pods is not None and pods["leads"] is True
    assert {one["cluster"]: one["state"] for one in pods["members"]} == {"east": "Live", "west": "Live"}


def test_top_is_for_those_who_may_get_its_path(fleet: RunningFleet) -> None:
    refused = fleet.kubectl.run("get", "--raw", "/reclock/top", "--as=nobody")
    assert refused.code != 0 and 'cannot get path "/reclock/top"' in refused.err
