"""Records anew what a real cluster answers: `python -m tests.conformance.record <kubeconfig> [scenario …]`."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import yaml

from deploy.local.api import Api
from tests.conformance.run import RECORDED, HttpEngine, play
from tests.conformance.scenarios import SCENARIOS, TIMED


def _api(kubeconfig: Path) -> Api:
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=authority)
    with tempfile.NamedTemporaryFile("wb") as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]))
        pair.write(base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return cast(Api, SimpleNamespace(server=cluster["server"], tls=context))


async def main(kubeconfig: Path, names: list[str]) -> None:
    async with aiohttp.ClientSession() as session:
        engine = HttpEngine(session, _api(kubeconfig))
        for name, scenario in (SCENARIOS | TIMED).items():
            if not names or name in names:
                steps: list[dict[str, Any]] = await play(engine, name, scenario)
                (RECORDED / f"{name}.json").write_text(json.dumps(steps, indent=1, sort_keys=True) + "\n")
                print(name, len(steps))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
