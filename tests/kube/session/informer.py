"""An informer that checks what it is told: list once, watch, resume from the last version, never again otherwise."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.kube.session.tools import RunningFleet


class Informer:
    """Follows one collection as client-go's reflector does; `problems` lists breaches of the watch contract.

    `store`: uid -> object. `relists`: how often it had to list (once is right).
    """

    def __init__(self, fleet: RunningFleet, path: str) -> None:
        config = yaml.safe_load(fleet.layout.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        self._tls = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        with tempfile.NamedTemporaryFile(suffix=".pem") as pair:
            pair.write(
                base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
            )
            pair.flush()
            self._tls.load_cert_chain(Path(pair.name))
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.store: dict[str, dict[str, Any]] = {}
        self.relists = 0
        self.problems: list[str] = []
        self.version = 0

    def __enter__(self) -> Informer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(15)

    def _run(self) -> None:
        listed = False
        while not self._stop.is_set():
            try:
                if not listed:
                    self._list()
                    listed = True
                listed = self._watch()
            except (OSError, urllib.error.URLError, json.JSONDecodeError, ValueError):
                time.sleep(0.2)  # the server is away: go on from the last version

    def _open(self, query: str) -> Any:
        return urllib.request.urlopen(self._server + self._path + query, timeout=5, context=self._tls)

    def _list(self) -> None:
        with self._open("") as answer:
            listing = json.loads(answer.read())
        self.relists += 1
        self.version = int(listing["metadata"]["resourceVersion"])
        self.store = {item["metadata"]["uid"]: item for item in listing["items"]}

    def _watch(self) -> bool:
        """Follow one stream to its end; False when the version is too old."""
        query = f"?watch=true&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={self.version}"
        try:
            with self._open(query) as answer:
                for line in answer:
                    if not line.endswith(b"\n"):
                        return True  # cut in the middle: nothing of it was delivered
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return bool(event["object"].get("code") != 410)
                    self._take(event)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 410:
                    return False
            time.sleep(0.2)
        return True

    def _take(self, event: dict[str, Any]) -> None:
        kind, obj = event["type"], event["object"]
        version, uid = int(obj["metadata"]["resourceVersion"]), obj["metadata"].get("uid", "")
        if version < self.version or (version == self.version and kind != "BOOKMARK"):
            self.problems.append(
                f"version {version} after {self.version} ({kind} {obj['metadata'].get('name')})"
            )
        self.version = version
        if kind == "ADDED" and uid in self.store:
            self.problems.append(f"ADDED twice: {obj['metadata']['name']}")
        if kind in ("MODIFIED", "DELETED") and uid not in self.store:
            self.problems.append(f"{kind} of what was never ADDED: {obj['metadata']['name']}")
        if kind == "DELETED":
            self.store.pop(uid, None)
        elif kind in ("ADDED", "MODIFIED"):
            self.store[uid] = obj
