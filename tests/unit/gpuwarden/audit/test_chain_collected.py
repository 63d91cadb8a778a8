import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwarden.audit.chain import Broken, Head, Verified, verify_collected
from gpuwarden.audit.files import (
    Location,
    Report,
    file_name,
    log_files,
    verify_collected_files,
    verify_files,
)
from tests.builders.audit_log import digest, line, log

NOISE = [
    b'{"event":"evidence.accepted","node":"n1"}\n',
    b"plain text\n",
    b"\xff\xfe gpuwarden.dev/audit/v1 {\n",
    b'{"quote":"gpuwarden.dev/audit/v1"}\n',
    b'{"v":"gpuwarden.dev/audit/v1","seq":true,"origin":"lab/controller-0"}\n',
    b'{"v":"gpuwarden.dev/audit/v1","seq":9,"origin":"lab/controller-0","x":1.5}\n',
    b"gpuwarden.dev/audit/v1 without braces\n",
    b'{"v":"2","seq":1,"origin":"lab/controller-0","quote":"gpuwarden.dev/audit/v1"}\n',
    b'{"message":"{\\"v\\":\\"gpuwarden.dev/audit/v1\\"}"}\n',
    b'{"message":"no braces gpuwarden.dev/audit/v1"}\n',
]


def one(result: dict[str, Verified | Broken]) -> Verified | Broken:
    assert list(result) == ["lab/controller-0"]
    return result["lab/controller-0"]


def test_records_are_found_among_other_lines() -> None:
    lines = log(3)
    mixed = [*NOISE, lines[0], *NOISE, lines[1], lines[2], *NOISE]

    assert one(verify_collected(mixed)) == Verified(
        3, 1, Head(3, digest(lines[2])), "lab/controller-0"
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: b"2026-03-01T12:00:00Z stdout F " + text,
        lambda text: (
            json.dumps({"log": text.decode(), "stream": "stdout", "n": 1.5}).encode() + b"\n"
        ),
        lambda text: json.dumps({"message": text.decode()}).encode() + b"\n",
        lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=None).encode(),
    ],
    ids=["cri", "docker", "message", "other-key-order"],
)
def test_collectors_wrapping_is_taken_off(wrap: Callable[[bytes], bytes]) -> None:
    assert isinstance(one(verify_collected([wrap(text) for text in log(3)])), Verified)


def test_lines_of_eight_times_the_size_of_a_record_are_looked_at() -> None:
    [text] = log(1)
    longest = b" " * (8 * 4096 - len(text)) + text
    assert isinstance(one(verify_collected([longest])), Verified)
    assert verify_collected([b" " + longest]) == {}


def test_text_that_is_no_unicode_is_no_record() -> None:
    wrapped = json.dumps({"log": 'gpuwarden.dev/audit/v1 {"\ud800":1}'}).encode() + b"\n"
    assert isinstance(one(verify_collected([wrapped, *log(1)])), Verified)


def test_late_and_repeated_delivery_is_put_right() -> None:
    lines = log(4)

    result = one(verify_collected([lines[2], lines[0], lines[1], lines[0], lines[3]]))

    assert isinstance(result, Verified)
    assert result.records == 4


def test_missing_changed_and_forged_records_are_found() -> None:
    lines = log(4)
    changed = [text.replace(b"node/n2", b"node/n9") for text in lines]
    forged = [*lines, line(2, digest(lines[0]), decision="forged")]

    for tampered, seq in ((lines[:1] + lines[2:], 2), (changed, 2), (forged, 3)):
        result = one(verify_collected(tampered))
        assert isinstance(result, Broken)
        assert result.seq in {seq, seq - 1}


def test_logs_of_several_replicas_are_distinguished() -> None:
    first, second = log(2), log(3, origin="lab/controller-1")

    results = verify_collected([second[0], *first, *second[1:]])

    assert [(origin, getattr(result, "records", 0)) for origin, result in results.items()] == [
        ("lab/controller-0", 2),
        ("lab/controller-1", 3),
    ]


def test_nothing_found_is_no_log() -> None:
    assert verify_collected(NOISE) == {}


def test_log_goes_on_across_files(tmp_path: Path) -> None:
    lines = log(5)
    (tmp_path / file_name(1)).write_bytes(b"".join(lines[:2]))
    (tmp_path / file_name(3)).write_bytes(b"".join(lines[2:]))

    report = verify_files(log_files(tmp_path))

    assert report == Report(Verified(5, 1, Head(5, digest(lines[4])), "lab/controller-0"))


def test_fault_is_located_in_its_file(tmp_path: Path) -> None:
    lines = log(5)
    first, second = tmp_path / file_name(1), tmp_path / file_name(3)
    first.write_bytes(b"".join(lines[:2]))
    second.write_bytes(lines[2] + lines[3].replace(b"node/n4", b"node/n5") + lines[4])

    report = verify_files([first, second])

    assert isinstance(report.result, Broken)
    assert (report.result.seq, report.at) == (4, Location(second, 2))


def test_fault_before_the_first_line_has_no_location(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()

    report = verify_files(log_files(path), expect=Head(1, "a" * 64))

    assert isinstance(report.result, Broken)
    assert report.at is None


def test_endless_line_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / file_name(1)
    path.write_bytes(b"".join(log(1)) + b"x" * 200_000)

    report = verify_files([path])

    assert isinstance(report.result, Broken)
    assert report.result.seq == 2


def test_collected_files_are_verified_by_origin(tmp_path: Path) -> None:
    lines = log(3)
    good, bad = tmp_path / "good.log", tmp_path / "bad.log"
    good.write_bytes(b"".join([*NOISE, *lines]))
    bad.write_bytes(b"".join([*NOISE, lines[0], lines[2]]))

    assert verify_collected_files([good])["lab/controller-0"].at is None
    report = verify_collected_files([bad])["lab/controller-0"]
    assert isinstance(report.result, Broken)
    assert (report.result.seq, report.at) == (2, Location(bad, len(NOISE) + 2))


def test_missing_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such"):
        log_files(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="holds no"):
        log_files(tmp_path)
