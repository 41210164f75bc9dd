"""Configuration of discovery: bad input is refused with path and allowed values."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.config import ConfigError, gather
from services.discovery.config import DiscoveryConfig, FileProvider, StaticProvider


def parse(tmp_path: Path, text: str) -> DiscoveryConfig:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return gather(DiscoveryConfig, "discovery", ["--config", str(file)], {})[0]


def test_providers(tmp_path: Path) -> None:
    config = parse(
        tmp_path,
        """
providers:
  - {type: kubeconfig-file, name: a, paths: [/x]}
  - {type: kubeconfig-file, name: b, paths: [/y]}
  - {type: static, clusters: [{name: east, kubeconfig: /k, labels: {region: eu}}]}
probe: {interval: 2, timeout: 1}
""",
    )
    parsed = dict(config.parsed_providers())
    assert list(parsed) == ["kubeconfig-file#a", "kubeconfig-file#b", "static"]
    assert isinstance(parsed["kubeconfig-file#a"], FileProvider)
    assert isinstance(parsed["static"], StaticProvider)
    assert config.probe.interval == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("providers: [{type: nope}]", ["providers[0].type", "cluster-api, cluster-inventory, "]),
        ("providers: [{}]", ["providers[0].type", "cluster-api, cluster-inventory, "]),
        ("providers: [{type: kubeconfig-file}]", ["providers[0]", "paths", "at least one"]),
        ("providers: [{type: kubeconfig-file, path: /x}]", ["providers[0].path", "allowed: name, paths"]),
        ("providers: [{type: kubeconfig-file, paths: /x}]", ["providers[0].paths", "array"]),
        ("providers: [{type: static, clusters: [{name: A_b, kubeconfig: /k}]}]",
         ["providers[0].clusters[0]", "DNS label"]),
        ("providers: [{type: static, clusters: [{kubeconfig: /k}]}]", ["providers[0].clusters[0]", "name"]),
        ("providers: [{type: kubeconfig-file, paths: [a]}, {type: kubeconfig-file, paths: [b]}]",
         ["providers[0].name", "needed"]),
        ("providers: [{type: kind, name: a}, {type: kind, name: a}]", ["providers[1].name", "'a' is given twice"]),
        ("providers: [{type: kubeconfig-secret, namespace: A_b}]", ["providers[0]", "namespace", "all"]),
        ("providers: [{type: kubeconfig-secret, label: 'a=b'}]", ["providers[0]", "key of a label"]),
        ("providers: [{type: kubeconfig-secret, key: ''}]", ["providers[0]", "key of a Secret"]),
        ("providers: [{type: kubeconfig-secret, selector: x}]",
         ["providers[0].selector", "name, kubeconfig, namespace, label, key"]),
        ("providers: [{type: cluster-api, namespace: A_b}]", ["providers[0]", "namespace", "all"]),
        ("providers: [{type: kind, interval: 0}]", ["providers[0]", "interval", "0.1 to 3600"]),
        ("providers: [{type: kind, timeout: .nan}]", ["providers[0]", "timeout", "0.1 to 3600"]),
        ("providers: [{type: kind, command: ''}]", ["providers[0]", "command", "PATH"]),
        ("providers: [{type: remote}]", ["providers[0]", "address", "host:port"]),
        ("providers: [{type: remote, address: 'example.com:1'}]", ["providers[0]", "not on this machine", "tls"]),
        ("providers: [{type: remote, address: '127.0.0.1:1', tls: {cert: a}}]", ["providers[0]", "missing: key, ca"]),
        ("probe: {interval: 0}", ["probe", "interval", "0.1 to 3600"]),
        ("probe: {timeout: fast}", ["probe.timeout", "float"]),
        ("probe: {every: 3}", ["probe.every", "interval, timeout, concurrency"]),
    ],
)  # fmt: skip
def test_bad_configuration(tmp_path: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tmp_path, text)
    assert all(part in str(caught.value) for part in expected), str(caught.value)


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("{type: kcp, root: 'root::a'}", "root 'root::a'; allowed: the path of a workspace"),
        ("{type: kcp, depth: 0}", "depth is 0; allowed: 1 to 10"),
        ("{type: cluster-inventory}", "accessProviders; allowed: at least one"),
        ("{type: cluster-inventory, accessProviders: [{name: a, exec: {args: [x]}}]}", "command; allowed: a path"),
        ("{type: namespace, selector: x}", "selector: unknown key; allowed: name, kubeconfig, labelSelector"),
        ("{type: openstack}", "'openstack'; allowed: cluster-api, cluster-inventory, kcp, kind, kubeconfig-file"),
    ],
)
def test_what_is_wrong_with_a_provider_is_named(tmp_path: Path, provider: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(tmp_path, f"providers: [{provider}]")
    assert expected in str(caught.value)
