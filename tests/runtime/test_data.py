"""Text to tokens to batches: what comes out, in which order, and what happens to bad rows."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dsgen.runtime.batches import IGNORED, Samples, TrainingData
from dsgen.runtime.corpus import Corpus, prepare_corpus
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Evaluation, Settings
from dsgen.runtime.text import BadRows, builtin_documents, find_files, read_rows
from dsgen.runtime.tokens import ByteTokenizer, Tokenizer, load_tokenizer
from dsgen.runtime.weights import find_weights
from tests.runtime.conftest import Ranks, ds_config, replace, settings


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def job_on(*files: str, **changes: Any) -> Settings:
    fields = {"builtin": None, "files": files, **{k: changes.pop(k) for k in ("mode", "shuffle") if k in changes}}
    return settings(data={"sequence_length": 8, **fields}, **changes)


def corpus_of(job: Settings, folder: Path, vocabulary: int = 257) -> Corpus:
    return prepare_corpus(job, ByteTokenizer(vocabulary), folder, folder)


def data_of(job: Settings, folder: Path, rank: int = 0, vocabulary: int = 257) -> TrainingData:
    return TrainingData(job, corpus_of(job, folder, vocabulary), rank=rank, device="cpu")


def save_tokenizer(path: Path, texts: list[str], size: int, added: list[str] | None = None) -> None:
    """A byte-level BPE tokenizer of about `size` tokens, learnt from the texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=["<s>", "</s>"]))
    tokenizer.add_tokens(added or [])
    tokenizer.save(str(path))


def row(samples: Samples, index: int, length: int = 8) -> tuple[list[int], list[int]]:
    ids, labels = np.zeros(length, dtype=np.int64), np.zeros(length, dtype=np.int64)
    samples.fill(index, ids, labels)
    return ids.tolist(), labels.tolist()


def test_builtin_text() -> None:
    documents = builtin_documents("python-topics")
    assert len(documents) > 50
    assert sum(map(len, documents)) > 300_000
    assert any("keyword" in document for document in documents)
    with pytest.raises(RuntimeProblem, match="no builtin text 'wikipedia'"):
        builtin_documents("wikipedia")


def test_packed(tmp_path: Path) -> None:
    """Documents end to end with the end of text between them, cut every 8 tokens, the rest dropped."""
    (tmp_path / "a.txt").write_text("abcd\n")
    (tmp_path / "b.txt").write_text("efghijklmn")
    job = job_on("*.txt")
    samples = Samples(corpus_of(job, tmp_path), "packed", 8)
    stream = [*b"abcd\n", 256, *b"efghijklmn", 256]
    assert samples.count == 2
    for index in range(2):
        part = stream[index * 8 : index * 8 + 8]
        assert row(samples, index) == (part, part)
    assert samples.targets.tolist() == [7, 7]


def test_vocabulary_without_room_for_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdef")
    job = job_on("a.txt")
    assert corpus_of(job, tmp_path, vocabulary=256).tokens.tolist() == [*b"abcdef", 10, 10]


def test_truncated(tmp_path: Path) -> None:
    """One line, one sequence: cut at the length, padded on the right, no loss on the padding."""
    (tmp_path / "a.txt").write_text("abc\n\nabcdefghijk\n")
    samples = Samples(corpus_of(job_on("a.txt", mode="truncated"), tmp_path), "truncated", 8)
    assert samples.count == 2
    assert row(samples, 0) == ([*b"abc", 256, 256, 256, 256, 256], [*b"abc", 256, *[IGNORED] * 4])
    assert row(samples, 1) == ([*b"abcdefgh"], [*b"abcdefgh"])
    assert samples.targets.tolist() == [3, 7]
    assert samples.tokens.tolist() == [4, 8]


def test_instruction(tmp_path: Path) -> None:
    """Loss on the answer and the end of text; a prompt that fills the sequence leaves nothing to learn."""
    rows = [{"prompt": "ab", "answer": "cd"}, {"prompt": "x" * 8, "answer": "y"}, {"prompt": "", "answer": "cd"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    samples = Samples(corpus_of(job_on("a.jsonl", mode="instruction"), tmp_path), "instruction", 8)
    assert (samples.count, samples.dropped) == (2, 1)
    assert row(samples, 0) == ([*b"abcd", *[256] * 4], [IGNORED, IGNORED, *b"cd", 256, *[IGNORED] * 3])
    # The model shifts labels: it predicts c, d and the end; without a prompt nothing predicts c.
    assert samples.targets.tolist() == [3, 2]


def test_bad_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "good one"}\n{"text": \n[1]\n{"txt": "a"}\n{"text": 3}\n{"text": "  "}\n'
        b'\n{"text": "\\ud800"}\n\xff\xfe\n{"text": "good two"}\n'
    )
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfgood\n\xff\nthree\n")
    bad = BadRows()
    rows = list(read_rows(job_on("a.jsonl", "b.txt").data, tmp_path, bad))
    assert [r.text for r in rows] == ["good one", "good two", "good\nthree\n"]
    assert bad.count == 8
    reasons = [
        ("a.jsonl:2", "not JSON"),
        ("a.jsonl:3", "a list, not an object"),
        ("a.jsonl:4", "no field 'text'; it has 'txt'"),
        ("a.jsonl:5", "field 'text' is a int"),
        ("a.jsonl:6", "field 'text' is empty"),
        ("a.jsonl:8", "half a character"),
        ("a.jsonl:9", "not JSON"),
        ("b.txt:2", "not UTF-8"),
    ]
    for line, (place, reason) in zip(bad.lines, reasons, strict=True):
        assert line.startswith(f"{tmp_path}/{place}: ")
        assert reason in line


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", None, "three"], "n": [1, 2, 3]}), path)
    bad = BadRows()
    assert [r.text for r in read_rows(job_on("a.parquet").data, tmp_path, bad)] == ["one", "three"]
    assert bad.lines == [f"{path}:2: field 'text' is a NoneType, not text"]
    with pytest.raises(RuntimeProblem, match="has no column prompt, answer; it has text, n"):
        list(read_rows(job_on("a.parquet", mode="instruction").data, tmp_path, bad))
    whole = path.read_bytes()
    for kept in (0, 3, len(whole) // 2, len(whole) - 20, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(RuntimeProblem, match=r"a\.parquet (is no readable parquet file|cannot be read): "):
            list(read_rows(job_on("a.parquet").data, tmp_path, bad))
    # Its directory, at the end, is whole; what it leads to is not.
    path.write_bytes(bytes(len(whole) // 4) + whole[len(whole) // 4 :])
    with pytest.raises(RuntimeProblem, match=r"a\.parquet (is no readable parquet file|cannot be read): "):
        list(read_rows(job_on("a.parquet").data, tmp_path, bad))


def test_finding_files(tmp_path: Path) -> None:
    for name in ("b.txt", "sub/a.txt", "sub/deep/c.jsonl", "odd[1].txt", "x.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")

    def names(*patterns: str, base: Path = tmp_path) -> list[str]:
        found = find_files(job_on(*patterns).data, base)
        return [path.resolve().relative_to(tmp_path.resolve()).as_posix() for path in found]

    assert names("**/*.txt") == ["b.txt", "odd[1].txt", "sub/a.txt"]
    assert names("sub/a.txt", "*.txt", "b.txt") == ["sub/a.txt", "b.txt", "odd[1].txt"]
    assert names("odd[1].txt") == ["odd[1].txt"]
    assert names(str(tmp_path / "sub/**/*.jsonl")) == ["sub/deep/c.jsonl"]
    assert names("../*.txt", base=tmp_path / "sub") == ["b.txt", "odd[1].txt"]
    for pattern, message in (("*.md", "no data file matches"), ("sub", "is a folder"), ("x.csv", "no known kind")):
        with pytest.raises(RuntimeProblem, match=message):
            names(pattern)


def test_unreadable_file(tmp_path: Path) -> None:
    """Real cases, each told by the name of the file; and the cache holds nothing that would be taken for tokens."""
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "unmounted" / "gone.txt")
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    # Opens well and gives EIO when it is read, as a file on a disk or a server that has died.
    (tmp_path / "dying.txt").symlink_to("/proc/self/mem")
    for name, message in (
        ("loop.txt", r"no data file matches .*loop\.txt: it is a link to .*loop\.txt, which does not exist"),
        ("gone.txt", r"no data file matches .*gone\.txt: it is a link to .*unmounted/gone\.txt, which does not exist"),
        ("folder.txt", r"folder\.txt is a folder, not a data file"),
        ("pipe.txt", r"pipe\.txt is no regular file"),
        ("dying.txt", r"dying\.txt cannot be read: Input/output error"),
    ):
        with pytest.raises(RuntimeProblem, match=message):
            corpus_of(job_on(name), tmp_path)
    assert not list((tmp_path / "cache").rglob("corpus.json"))


def test_file_of_somebody_else(tmp_path: Path) -> None:
    """Permissions, which root does not feel: so as another user."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "a.txt").write_text("text")
    closed.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        for pattern in ("a.txt", "*.txt"):
            with pytest.raises(
                RuntimeProblem, match=r"closed.* cannot be read: Permission denied|no data file matches"
            ):
                find_files(job_on(str(closed / pattern)).data, tmp_path)
        with pytest.raises(RuntimeProblem, match=r"closed/a\.txt cannot be read: Permission denied"):
            find_files(job_on(str(closed / "a.txt")).data, tmp_path)
    finally:
        if was == 0:
            os.seteuid(0)
        closed.chmod(0o700)


def test_file_cut_short(tmp_path: Path) -> None:
    """The row that was cut is bad and named; the rows before it are used."""
    rows = "".join(json.dumps({"text": f"row {number} é"}, ensure_ascii=False) + "\n" for number in range(3))
    for lost in (3, 4, 10):
        (tmp_path / "a.jsonl").write_bytes(rows.encode()[:-lost])
        bad = BadRows()
        assert [r.text for r in read_rows(job_on("a.jsonl").data, tmp_path, bad)] == ["row 0 é", "row 1 é"]
        (line,) = bad.lines
        assert line.startswith(f"{tmp_path}/a.jsonl:3: not JSON")


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home folder in data files, tokenizer and weights."""
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (home / "data" / "a.txt").write_text("text")
    assert find_files(job_on("~/data/*.txt").data, tmp_path) == [home / "data" / "a.txt"]
    assert find_files(job_on("~/data/a.txt").data, tmp_path) == [home / "data" / "a.txt"]
    assert corpus_of(job_on("~/data/a.txt"), tmp_path).tokens.tolist() == [*b"text", 256]
    with pytest.raises(RuntimeProblem, match=f"no data file matches {home}/a.txt"):
        find_files(job_on("~/a.txt").data, tmp_path)
    with pytest.raises(RuntimeProblem, match=r"no data file matches .*~nobody-of-this-name/a\.txt"):
        find_files(job_on("~nobody-of-this-name/a.txt").data, tmp_path)
    named = settings(data={"tokenizer": "~/tokenizer.json"}, model={"weights": "~/weights"})
    with pytest.raises(RuntimeProblem, match=f"no tokenizer at {home}/tokenizer.json"):
        load_tokenizer(named, tmp_path, 257, 1)
    with pytest.raises(RuntimeProblem, match=f"no weights at {home}/weights"):
        find_weights(named, tmp_path)
    save_tokenizer(home / "tokenizer.json", ["a small text"], 60)
    assert load_tokenizer(named, tmp_path, 257, 1).encode(["small"]) != [[]]
    (home / "weights").mkdir()
    with pytest.raises(RuntimeProblem, match=f"{home}/weights holds no .safetensors file"):
        find_weights(named, tmp_path)


def test_wrong_tokenizer(tmp_path: Path) -> None:
    def load(tokenizer: str, weights: str | None = None, vocabulary: int = 300) -> Tokenizer:
        job = settings(data={"tokenizer": tokenizer}, model={"weights": weights})
        return load_tokenizer(job, tmp_path, vocabulary, 1)

    (tmp_path / "broken.json").write_text('{"model": {"type": "BPE", "vo')
    with pytest.raises(RuntimeProblem, match=r"tokenizer broken\.json cannot be loaded: "):
        load("broken.json")
    (tmp_path / "other.json").write_text('{"version": "1.0"}')
    with pytest.raises(RuntimeProblem, match=r"tokenizer other\.json cannot be loaded: "):
        load("other.json")
    (tmp_path / "weights").mkdir()
    with pytest.raises(RuntimeProblem, match=r"tokenizer \./weights cannot be loaded: "):
        load("./weights")

    one, two = ["the cat sat on the mat by the door " * 3], ["zum Beispiel zwölf Boxkämpfer über den Deich " * 3]
    save_tokenizer(tmp_path / "one.json", one, 90)
    save_tokenizer(tmp_path / "two.json", two, 90)
    size = load("one.json").size
    with pytest.raises(RuntimeProblem, match=f"has {size} ids but the model's vocabulary has {size - 1}"):
        load("one.json", vocabulary=size - 1)

    save_tokenizer(tmp_path / "weights" / "tokenizer.json", one, 90)
    assert load("./weights", "./weights").encode(one) == load("one.json", "./weights").encode(one)
    save_tokenizer(tmp_path / "added.json", one, 90, added=["<tool>"])
    assert load("added.json", "./weights").size == size + 1
    for name in ("two.json", "bytes"):
        with pytest.raises(RuntimeProblem, match=rf"tokenizer {name} is not that of the weights: it has \d+ of {size}"):
            load(name, "./weights")
    (tmp_path / "weights" / "tokenizer.json").unlink()
    assert load("two.json", "./weights").size > 0


def test_large_text_file_is_one_document(tmp_path: Path) -> None:
    """Read a megabyte at a time, without an end of text in between."""
    line = "0123456789" * 10 + "\n"
    (tmp_path / "a.txt").write_text(line * 25000)
    corpus = corpus_of(job_on("a.txt"), tmp_path)
    assert bytes(corpus.tokens[:-1].astype(np.uint8)) == (line * 25000).encode()
    assert corpus.starts.tolist() == [0, len(line) * 25000 + 1]


def test_tokens_are_made_once_and_again_when_the_text_changes(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("first text")
    job = job_on("a.txt")
    first = corpus_of(job, tmp_path)
    made = {file: file.stat().st_mtime_ns for file in cache.rglob("tokens.bin")}
    assert corpus_of(job, tmp_path).fingerprint == first.fingerprint
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("tokens.bin")} == made
    path.write_text("another text")
    second = corpus_of(job, tmp_path)
    assert second.fingerprint != first.fingerprint
    assert bytes(second.tokens[:-1].astype(np.uint8)) == b"another text"
    assert corpus_of(job_on("a.txt", mode="truncated"), tmp_path).tokens.tolist() == second.tokens.tolist()


def _three_bytes(tokens: Path) -> bytes:
    """The first ids of a file of 16-bit tokens, as the bytes that they stand for."""
    return tokens.read_bytes()[:6:2]


def test_tokens_that_nobody_uses_are_removed(tmp_path: Path, cache: Path) -> None:
    """Only where new ones are made, only those not opened for 30 days, and never those that a process is opening."""
    for name in ("old", "held", "young", "new"):
        (tmp_path / f"{name}.txt").write_text(name)
    for name in ("old", "held", "young"):
        corpus_of(job_on(f"{name}.txt"), tmp_path)
    found = {_three_bytes(about.with_name("tokens.bin")): about for about in cache.rglob("corpus.json")}
    old, held = found[b"old"], found[b"hel"]
    for about, days in ((old, 31), (held, 31), (found[b"you"], 29)):
        os.utime(about, (time.time() - days * 86400,) * 2)
    with held.parent.with_name(f"{held.parent.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        corpus_of(job_on("new.txt"), tmp_path)
    assert not old.parent.exists()
    assert {_three_bytes(path) for path in cache.rglob("tokens.bin")} == {b"hel", b"you", b"new"}
    assert time.time() - found[b"you"].stat().st_mtime > 86400
    corpus_of(job_on("young.txt"), tmp_path)
    assert time.time() - found[b"you"].stat().st_mtime < 60


def test_cache_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home to write to, the tokens go to the run folder."""
    monkeypatch.delenv("DSGEN_CACHE_DIR")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "a.txt").write_text("text")
    prepare_corpus(job_on("a.txt"), ByteTokenizer(257), tmp_path, tmp_path / "run")
    assert len(list((tmp_path / "run" / "tokens").rglob("tokens.bin"))) == 1


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    texts=st.integers(20, 60),
    micro=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    world=st.integers(1, 4),
    seed=st.integers(0, 2**40),
    shuffle=st.booleans(),
    held=st.integers(0, 1),
)
def test_every_sample_once_an_epoch(
    texts: int, micro: int, accumulation: int, world: int, seed: int, shuffle: bool, held: int
) -> None:
    """However samples are dealt to ranks and micro steps, an epoch has each once and none that is held out."""
    evaluation = Evaluation(every_steps=1, steps=1) if held else None
    job = replace(
        job_on("unused", shuffle=shuffle),
        micro_batch=micro,
        accumulation=accumulation,
        world_size=world,
        seed=seed,
        evaluation=evaluation,
    )
    tokens = np.arange(texts * 8, dtype=np.uint16)
    corpus = Corpus(tokens=tokens, starts=None, answers=None, end=(0,), bad_rows=0, bad_lines=(), fingerprint="x")
    parts = [TrainingData(job, corpus, rank=rank, device="cpu") for rank in range(world)]
    epoch = parts[0].samples_per_epoch
    assert epoch == texts - held * micro * world
    seen: list[int] = []
    while len(seen) < 2 * epoch:
        per_rank = [data.micro_batches(data.next_batch()) for data in parts]
        for step in range(accumulation):
            for rank in range(world):
                assert len(per_rank[rank][step]) == micro
                seen.extend(int(sample) for sample in per_rank[rank][step])
    held_out = {int(sample) for batch in parts[0].held_out() for sample in batch.samples}
    assert len(held_out) == held * micro * world
    first, second = seen[:epoch], seen[epoch : 2 * epoch]
    assert sorted(first) == sorted(second) == sorted(set(range(texts)) - held_out)
    if not shuffle:
        assert first == sorted(first)
    elif epoch > 15:
        assert first != second
    # The position says everything: another rank set continues with the same samples.
    again = TrainingData(
        replace(job, micro_batch=1, accumulation=1, world_size=1, evaluation=None), corpus, rank=0, device="cpu"
    )
    if not held:
        again.position = 5
        assert int(again.next_batch().samples[0]) == seen[5]


def test_order_never_changes(tmp_path: Path) -> None:
    """Resuming after an upgrade must find the same order: these numbers stand for it."""
    data = data_of(settings(), tmp_path)
    data.samples.count = 10
    data._training = np.arange(10)
    data._orders.clear()
    drawn = [int(sample) for _ in range(2) for sample in data.next_batch().samples]
    assert drawn == [6, 4, 8, 3, 9, 0, 2, 5, 7, 1, 2, 6, 1, 5, 7, 0]


def test_length_of_training(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 799)
    base = {"micro_batch": 2, "accumulation": 3, "world_size": 2}

    def steps(**length: Any) -> int:
        return data_of(job_on("a.txt", **base, **{"steps": None, **length}), tmp_path).steps()

    # 100 sequences of 8 tokens, 12 a step.
    assert steps(steps=7) == 7
    assert steps(epochs=1) == 9
    assert steps(epochs=0.5) == 5
    assert steps(tokens=961) == 11
    with pytest.raises(RuntimeProblem, match="one of the three"):
        steps(steps=1, tokens=5)


def test_tensors(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc\nabcdef\n")
    data = data_of(job_on("a.txt", mode="truncated", shuffle=False, micro_batch=1, accumulation=1), tmp_path, rank=1)
    batch = data.next_batch()
    assert (batch.targets, batch.tokens) == (3 + 6, 4 + 7)
    ((sample,),) = data.micro_batches(batch)
    tensors, targets = data.tensors([sample])
    assert targets == 6
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {"input_ids": (1, 8), "labels": (1, 8)}
    assert tensors["labels"].tolist() == [[*b"abcdef", 256, IGNORED]]


def test_held_out_part_too_large(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 799)
    job = replace(job_on("a.txt"), evaluation=Evaluation(every_steps=1, steps=25))
    with pytest.raises(RuntimeProblem, match="holds out 100 of 100 sequences"):
        data_of(job, tmp_path)


@pytest.mark.train
def test_run_on_files(ranks: Ranks, tmp_path: Path) -> None:
    """Two ranks on files with bad rows and a tokenizer of their own: rows are counted, named, and left out."""
    lines = [json.dumps({"text": f"sentence number {i} of a small text"}) for i in range(40)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("\n".join([*lines, "{broken", *lines]))
    save_tokenizer(tmp_path / "tokenizer.json", lines, 200)
    job = settings(
        data={"builtin": None, "files": ("data/*.jsonl",), "tokenizer": "tokenizer.json"}, steps=None, epochs=3
    )
    result = ranks.run(tmp_path, job, ds_config(job, 2), env={"DSGEN_BASE_DIR": str(tmp_path)}).checked()
    assert result.report["bad_rows"] == 1
    (line,) = (tmp_path / "run" / "logs" / "bad-rows.txt").read_text().splitlines()
    assert line.startswith(f"{tmp_path}/data/a.jsonl:41: not JSON")
    assert "1 rows of the data could not be used" in result.console()
    assert result.losses[-1] < result.losses[0] - 1
    plan = result.events("plan")[0]
    assert plan["steps"] == -(-3 * plan["samples_per_epoch"] // 8)
