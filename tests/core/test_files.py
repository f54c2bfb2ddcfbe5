"""Files that a run leaves behind: whole or untouched, strict JSON, and one sentence for each fault."""

import json
import os

import pytest

from grpo_variants.files import FORMAT, FileError, read_json, write_json

CONTENT = {"name": "Müller \udc80", "values": [1, 2.5, None, True], "more": {"1": {"at": 1e-17}}}
REMEDY = "start anew"


def refuse(word):
    raise AssertionError(f"{word} is no JSON")


def test_what_is_written_is_strict_json_and_reads_back(tmp_path):
    path = write_json(tmp_path / "new" / "file.json", CONTENT)
    raw = json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse)
    assert (next(iter(raw)), raw["format"], len(raw["checksum"])) == ("format", FORMAT, 64)
    assert read_json(path, REMEDY) == CONTENT
    assert os.listdir(tmp_path / "new") == ["file.json"]


def test_a_formatter_does_not_spoil_a_file_and_a_changed_value_does(tmp_path):
    path = write_json(tmp_path / "file.json", CONTENT)
    raw = json.loads(path.read_bytes())
    path.write_text(json.dumps(raw, indent=8, sort_keys=True))
    assert read_json(path, REMEDY) == CONTENT
    path.write_text(json.dumps(raw | {"values": [1, 2.5, None, False]}))
    with pytest.raises(FileError, match="does not agree with its checksum"):
        read_json(path, REMEDY)


NOT_VALID = "is truncated or damaged, since it is not valid JSON (line 1, column 12)"
# (bytes of the file, what the sentence says between the path and the remedy)
FAULTS = [
    (b'{"format": ', NOT_VALID + ": "),
    (b"", "is truncated or damaged, since it is not valid JSON (line 1, column 1): "),
    (b"[1, 2]", "holds a list where an object of names and values is expected: "),
    ("{}".encode("utf-16"), "is not UTF-8 text (byte 0): "),
    (b'{"a": NaN}', "holds NaN, which is no number in JSON: "),
    (b'{"a": 1e999}', "holds 1e999, which is no number in JSON: "),
    (b"[" * 100_000, "is damaged, since it is not valid JSON: "),
    (b'{"a": ' + b"9" * 5000 + b"}", "is damaged, since it is not valid JSON: "),
    (b'{"format": "2"}', "has format '2' where a whole number from 1 to 2 is expected: "),
    (b'{"format": true}', "has format True where a whole number from 1 to 2 is expected: "),
    (b'{"format": 0}', "has format 0 where a whole number from 1 to 2 is expected: "),
    (
        b'{"format": 3}',
        "has format 3, which a newer grpo-variants wrote and this one (format 2) does not know: upgrade grpo-variants, "
        "or ",
    ),
    (b'{"format": 2}', "has no checksum, so it was changed by hand or damaged: "),
    (b'{"format": 2, "checksum": 5}', "does not agree with its checksum, so it was changed by hand or damaged: "),
]


@pytest.mark.parametrize(("raw", "fault"), FAULTS)
def test_each_fault_is_one_sentence_with_the_path_and_what_to_do(tmp_path, raw, fault):
    path = tmp_path / "file.json"
    path.write_bytes(raw)
    with pytest.raises(FileError) as caught:
        read_json(path, REMEDY)
    assert str(caught.value) == f"{path} {fault}start anew."


def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path):
    for path, why in ((tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(FileError) as caught:
            read_json(path, REMEDY)
        assert str(caught.value) == f"{path} cannot be read ({why}): start anew."


def test_a_file_of_version_0_1_0_is_read_without_a_checksum(tmp_path):
    path = tmp_path / "file.json"
    for raw in ({"step": 3}, {"format": 1, "step": 3}):
        path.write_text(json.dumps(raw))
        assert read_json(path, REMEDY) == {"step": 3}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, call):
    path = write_json(tmp_path / "file.json", CONTENT)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(FileError) as caught:
        write_json(path, {"other": 1})
    assert str(caught.value) == (
        f"{path} cannot be written (No space left on device): free space on that disk, or choose a folder that can be "
        "written to."
    )
    assert read_json(path, REMEDY) == CONTENT
    assert os.listdir(tmp_path) == ["file.json"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(FileError, match=r"taken/file\.json cannot be written"):
        write_json(tmp_path / "taken" / "file.json", CONTENT)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_refused_by_name_before_anything_is_written(tmp_path, value):
    path = write_json(tmp_path / "file.json", CONTENT)
    with pytest.raises(ValueError, match="finite numbers only") as caught:
        write_json(path, {"effective": {"reward_weights": [1.0, value]}})
    assert str(caught.value) == f"{path} holds finite numbers only, and effective.reward_weights[1] is {value}."
    assert read_json(path, REMEDY) == CONTENT
