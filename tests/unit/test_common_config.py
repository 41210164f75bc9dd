"""Configuration: sources, their order, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from services.common.config import (
    TLS,
    ConfigError,
    ServiceConfig,
    dump,
    gather,
    is_loopback,
    load,
    split_address,
)  # fmt: skip


class Inner(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    max_wait: float = 1.0


class Sample(ServiceConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    role: Literal["manager", "worker"] = "manager"
    inner: Inner = msgspec.field(default_factory=Inner)
    endpoints: list[str] = msgspec.field(default_factory=list)
    workers: dict[str, str] = msgspec.field(default_factory=dict)


def make(*argv: str, **environ: str) -> Sample:
    return gather(Sample, "sample", argv, environ)[0]


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("inner: {maxWait: 2}\nendpoints: [a, b]\nworkers: {east: 'h:1'}\nlogLevel: debug\n")
    config = make("--config", str(file))
    assert (config.inner.max_wait, config.endpoints, config.workers) == (2.0, ["a", "b"], {"east": "h:1"})
    config = make("--config", str(file), RECLOCK_SAMPLE_INNER_MAX_WAIT="3", RECLOCK_SAMPLE_ENDPOINTS="x,y")
    assert (config.inner.max_wait, config.endpoints, config.log_level) == (3.0, ["x", "y"], "debug")
    config = make("--config", str(file), "--inner.maxWait=4", RECLOCK_SAMPLE_INNER_MAX_WAIT="3")
    assert config.inner.max_wait == 4.0
    assert make("--inner.max-wait", "5").inner.max_wait == 5.0


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [
        ("bogus: 1", ["bogus", "unknown key", "role"]),
        ("inner: {maxwait: 1}", ["inner.maxwait", "unknown key", "maxWait"]),
        ("role: boss", ["role", "manager, worker"]),
        ("traceRatio: 1.5", ["traceRatio", "0 to 1"]),
        ("traceRatio: .nan", ["traceRatio", "0 to 1"]),
        ("inner: {maxWait: soon}", ["inner.maxWait", "float"]),
        ("inner: 3", ["inner", "object"]),
        ("endpoints: 3", ["endpoints", "array"]),
        ("tls: {cert: a}", ["tls", "key, ca"]),
        ("grpcAddress: 0.0.0.0:1", ["grpcAddress", "tls.cert"]),
        ("grpcAddress: nowhere", ["grpcAddress", "host:port"]),
        ("httpAddress: ':x'", ["httpAddress", "host:port"]),
        ("role: worker\nrole: manager", ["role", "given twice"]),
        ("role: [", ["line"]),
        ("- a", ["mapping"]),
    ],
)
def test_bad_configuration_names_path_and_allowed(tmp_path: Path, yaml: str, expected: list[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(yaml)
    with pytest.raises(ConfigError) as caught:
        make("--config", str(file))
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in expected), text


@pytest.mark.parametrize("argv", [["--nope", "1"], ["nope"], ["--role"], ["--config", "/does/not/exist"]])
def test_bad_flags_are_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError):
        make(*argv)


def test_load_exits_2_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Sample, "sample", ["--role", "boss"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_print_config_and_help_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, expected in (("--print-config", "role: manager"), ("--help", "RECLOCK_SAMPLE_TLS_CERT")):
        with pytest.raises(SystemExit) as caught:
            load(Sample, "sample", [flag])
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out


def test_dump_redacts_secrets() -> None:
    class Secret(msgspec.Struct, rename="camel"):
        api_token: str = "abc"
        url: str = "http://user:pw@proxy:1"

    text = dump(Secret())
    assert "abc" not in text
    assert "pw" not in text
    assert "proxy:1" in text


def test_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert is_loopback("127.0.0.1:1")
    assert is_loopback("[::1]:1")
    assert is_loopback("unix:/run/x")
    assert not is_loopback("10.0.0.1:1")
    assert not is_loopback("discovery:7401")


def test_tls_is_true_only_when_complete() -> None:
    assert not TLS()
    assert TLS(cert="a", key="b", ca="c")
