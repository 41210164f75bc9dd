"""Credentials of one cluster, out of a kubeconfig: TLS context, bearer token, their renewal.

Tokens of OIDC and GCP come through kubernetes_asyncio's loader; exec plugins are run here, with a deadline.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509

from services.common.kube.kubeconfig import KubeconfigError, read_file

EXEC_EXTENSION = "client.authentication.k8s.io/exec"
"""Extension of a kubeconfig's cluster entry whose content plugins get as `spec.cluster.config`."""
EXEC_TIMEOUT = 60.0
TOKEN_FILE_PERIOD = 60.0
SKEW = 60.0
"""Seconds before its end at which a credential is renewed."""


class CredentialsError(KubeconfigError):
    """The credentials cannot be had now: the plugin failed, the token endpoint refused."""


class Credentials:
    """What authenticates us to one cluster. Owned by one KubeClient; `refresh` is called under its lock."""

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        """Take a single-context kubeconfig as `kubeconfig.single` makes it."""
        self.kubeconfig = kubeconfig
        self._cluster: dict[str, Any] = kubeconfig["clusters"][0]["cluster"]
        self._user: dict[str, Any] = kubeconfig["users"][0]["user"]
        self.server: str = self._cluster["server"].rstrip("/")
        self.proxy: str | None = self._cluster.get("proxy-url") or None
        self.server_name: str | None = self._cluster.get("tls-server-name") or None
        if self.proxy and not self.proxy.startswith("http://"):
            scheme = self.proxy.partition("://")[0]
            raise KubeconfigError(f"proxy-url: scheme {scheme!r} is not supported; allowed: http")
        self.authorization = ""
        """Value of the Authorization header, or ""."""
        self._expiry = self._end = 0.0 if self.renewable else float("inf")
        self._cert = _data(self._user, "client-certificate-data")
        self._key = _data(self._user, "client-key-data")
        self.tls = self._tls()
        """TLS context; a new object whenever the client certificate changed. None for http."""

    def is_of(self, kubeconfig: Mapping[str, Any]) -> bool:
        """Whether these credentials were made of just this single-context kubeconfig."""
        return self.kubeconfig == kubeconfig

    def _tls(self) -> ssl.SSLContext | None:
        if not self.server.startswith("https:"):
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ca = _data(self._cluster, "certificate-authority-data")
        try:
            if self._cluster.get("insecure-skip-tls-verify"):
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif ca:
                context.load_verify_locations(cadata=ca.decode("ascii", "ignore"))
            else:
                context.load_default_certs()
        except (ssl.SSLError, ValueError):
            raise KubeconfigError("certificate-authority-data holds no usable certificate") from None
        if self._cert and self._key:
            _load_chain(context, self._cert, self._key)
        return context

    @property
    def expired(self) -> bool:
        """Whether there is nothing to send before `refresh` was called."""
        return time.time() >= self._end

    @property
    def due(self) -> bool:
        """Whether `refresh` should be called by now; what there is still holds for a while."""
        return time.time() >= self._expiry

    @property
    def certificate_end(self) -> datetime | None:
        """When the client certificate ends; None without one."""
        return x509.load_pem_x509_certificate(self._cert).not_valid_after_utc if self._cert else None

    async def refresh(self) -> None:
        """Get the token or certificate anew. CredentialsError says why it cannot be had."""
        user = self._user
        if isinstance(user.get("exec"), dict):
            await self._from_exec(user["exec"])
        elif isinstance(user.get("auth-provider"), dict):
            await self._from_provider()
        elif user.get("tokenFile"):
            token = await asyncio.to_thread(read_file, Path(user["tokenFile"]), "tokenFile")
            self.authorization = f"Bearer {token.decode('utf-8', 'replace').strip()}"
            self._expiry = self._end = time.time() + TOKEN_FILE_PERIOD
        elif user.get("token"):
            self.authorization = f"Bearer {user['token']}"
        elif user.get("username") and user.get("password"):
            pair = f"{user['username']}:{user['password']}".encode()
            self.authorization = f"Basic {base64.b64encode(pair).decode()}"

    @property
    def renewable(self) -> bool:
        """Whether a refresh can give something new (else a 401 is final)."""
        return any(self._user.get(key) for key in ("exec", "auth-provider", "tokenFile"))

    async def _from_provider(self) -> None:
        loader, configuration = await asyncio.to_thread(_loader, _mutable(self.kubeconfig))
        try:
            # The CA and certificates stay ours: the loader would leave them in files of its own.
            async with asyncio.timeout(EXEC_TIMEOUT):
                await loader._load_authentication()
            loader._set_config(configuration)
        except TimeoutError:
            raise CredentialsError("auth-provider: no answer in time") from None
        except Exception as error:  # the loader raises whatever its providers do
            raise CredentialsError(f"auth-provider: {type(error).__name__}") from error
        self.authorization = str(configuration.api_key.get("BearerToken", ""))
        self._expiry = self._end = time.time() + 300

    async def _from_exec(self, plugin: Mapping[str, Any]) -> None:
        status = await run_plugin(plugin, self._cluster)
        token = status.get("token")
        cert, key = status.get("clientCertificateData"), status.get("clientKeyData")
        if not token and not (cert and key):
            raise CredentialsError("exec plugin: answered neither a token nor a certificate with its key")
        self.authorization = f"Bearer {token}" if token else ""
        if cert and key and (str(cert).encode(), str(key).encode()) != (self._cert, self._key):
            self._cert, self._key = str(cert).encode(), str(key).encode()
            self.tls = self._tls()
        self._expiry, self._end = _lifetime(status.get("expirationTimestamp"))


def _lifetime(stamp: Any) -> tuple[float, float]:
    """When to renew, and when it has ended."""
    if not isinstance(stamp, str):
        return float("inf"), float("inf")
    try:
        end = datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        raise CredentialsError("exec plugin: expirationTimestamp is no RFC 3339 time") from None
    # Short-lived ones keep most of their life, or each request would run the plugin.
    return max(end - SKEW, time.time() + 0.5 * (end - time.time())), end - 1.0


def _data(body: Mapping[str, Any], key: str) -> bytes:
    value = body.get(key)
    return base64.b64decode(str(value)) if value else b""


def _loader(kubeconfig: dict[str, Any]) -> tuple[Any, Any]:
    """kubernetes_asyncio's loader of a kubeconfig, and the configuration that it fills."""
    # 860 modules, 36 MiB and most of a second: for those who have such credentials.
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

    return KubeConfigLoader(config_dict=kubeconfig, config_base_path=""), Configuration()


def _mutable(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _load_chain(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Load a client certificate. OpenSSL reads files only: this one is memory, so no key reaches a disk."""

    def password() -> str:
        raise KubeconfigError("client-key-data is encrypted; store it decrypted")

    fd = os.memfd_create("reclock", os.MFD_CLOEXEC)
    try:
        os.write(fd, cert.rstrip(b"\n") + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{fd}", password=password)
    except (ssl.SSLError, OSError):
        raise KubeconfigError("client-certificate-data and client-key-data are no matching pair") from None
    finally:
        os.close(fd)


def _cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """`spec.cluster` of an ExecCredential: the kubeconfig's entry, of its extensions only what is for plugins."""
    info = {key: value for key, value in cluster.items() if key not in ("proxy-url", "extensions")}
    for item in cluster.get("extensions") or ():
        if isinstance(item, dict) and item.get("name") == EXEC_EXTENSION:
            info["config"] = item.get("extension")
    return info


async def run_plugin(plugin: Mapping[str, Any], cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run an exec credential plugin (client.authentication.k8s.io) and return its answer's `status`."""
    command, version = plugin.get("command"), plugin.get("apiVersion")
    if not command or not version:
        raise CredentialsError("exec plugin: needs command and apiVersion")
    spec: dict[str, Any] = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    env = {**os.environ, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    env.update({str(item["name"]): str(item["value"]) for item in plugin.get("env") or []})
    args = [str(arg) for arg in plugin.get("args") or []]
    try:
        process = await asyncio.create_subprocess_exec(
            str(command), *args, env=env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise CredentialsError(f"exec plugin {command}: {error.strerror}") from None
    try:
        async with asyncio.timeout(EXEC_TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        raise CredentialsError(f"exec plugin {command}: no answer in {EXEC_TIMEOUT:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise CredentialsError(f"exec plugin {command}: exit code {process.returncode}")
    return _plugin_status(str(command), str(version), output)


def _plugin_status(command: str, version: str, output: bytes) -> Mapping[str, Any]:
    try:
        answer = msgspec.json.decode(output)
    except msgspec.DecodeError:
        raise CredentialsError(f"exec plugin {command}: its answer is no JSON") from None
    if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
        raise CredentialsError(f"exec plugin {command}: its answer is no ExecCredential")
    if answer.get("apiVersion") != version:
        raise CredentialsError(f"exec plugin {command}: answered another apiVersion than {version}")
    status = answer.get("status")
    if not isinstance(status, dict):
        raise CredentialsError(f"exec plugin {command}: its answer has no status")
    return status
