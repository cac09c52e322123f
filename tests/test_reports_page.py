"""The page of a run, as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
from page_text import Page, luminance, stands_alone, told
from test_reports_sample import (
    ALL,
    HOSTILE,
    broken_sample,
    empty_sample,
    failing_sample,
    failing_suite_sample,
    hostile_sample,
    near_tie_sample,
    sample,
    suite_sample,
)

from hloracle.reports.page import html
from hloracle.reports.record import validate

Record = dict[str, Any]


@pytest.mark.parametrize("make", ALL)
def test_page_is_well_formed_and_alone(make: Callable[[], Record]) -> None:
    script = resources.files("hloracle.reports").joinpath("templates", "report.js").read_text("utf-8")
    stands_alone(html.render(make()), script)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.replace("<main", "<img alt=''><main", 1),
        lambda s: s.replace("</main>", "<script>1</script></main>", 1),
        lambda s: s.replace("</main>", "<a href='https://example.org'>x</a></main>", 1),
        lambda s: s.replace("</main>", "<p onclick='1'>x</p></main>", 1),
        lambda s: s.replace("default-src 'none'", "default-src *", 1),
        lambda s: s.replace("</style>", " </style>", 1),
        lambda s: s.replace("</main>", "<p id='main'>x</p></main>", 1),
    ],
)
def test_a_page_that_does_not_stand_alone_is_noticed(change: Callable[[str], str]) -> None:
    source = html.render(sample())
    script = resources.files("hloracle.reports").joinpath("templates", "report.js").read_text("utf-8")
    assert change(source) != source
    with pytest.raises(AssertionError):
        stands_alone(change(source), script)


@pytest.mark.parametrize("make", ALL)
def test_page_can_be_read_without_seeing_it(make: Callable[[], Record]) -> None:
    told(html.render(make()))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.replace('<html lang="en">', "<html>", 1),
        lambda s: s.replace('<th scope="col">', "<th>", 1),
        lambda s: s.replace("</main>", "<h1>again</h1></main>", 1),
        lambda s: s.replace("</main>", "<h5>below nothing</h5></main>", 1),
        lambda s: s.replace('tabindex="0"', "", 1),
        lambda s: s.replace("</main>", '<svg role="img"></svg></main>', 1),
        lambda s: s.replace("</main>", '<div role="region" aria-label="again"></div>' * 2 + "</main>", 1),
    ],
)
def test_a_page_that_has_to_be_seen_is_noticed(change: Callable[[str], str]) -> None:
    source = html.render(sample())
    assert change(source) != source
    with pytest.raises(AssertionError):
        told(change(source))


def test_hostile_text_is_shown_and_does_nothing() -> None:
    source = html.render(hostile_sample())
    page = Page(source)
    assert source.count("<script") == 1
    assert "<img" not in source
    assert HOSTILE[:60] in page.text
    assert "⟨U+202E⟩gnp.exe⟨U+2066⟩␀␇␛[31m␡⟨U+0085⟩⟨U+200B⟩⟨U+D800⟩⟨U+FEFF⟩" in page.text
    hidden = re.compile("[\u202a-\u202e\u2066-\u2069\u200b\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
    assert hidden.search(source) is None
    assert len(source) < 5_000_000


def test_page_says_what_happened() -> None:
    passed, failed = Page(html.render(sample())).text, Page(html.render(failing_sample())).text
    assert (
        "llama on cpu in f32: what was compared agrees with Hugging Face; nothing is said of anything else." in passed
    )
    wrong = "llama on cpu in f32, first wrong at layers.3.self_attn.q_rope: by all that was compared, the graph itself is at"
    assert wrong in failed
    assert "Conforms" in passed
    assert "1,440 of 1,440" in passed
    assert "Not checked: operations of each kind are those pinned in census.json" in passed
    assert "Emitter fault" in failed
    where = ("First wrong at", "layers.3.self_attn.q_rope", "on prompt", "chat@64", "at step", "5", "in")
    assert re.search(r"\s*".join(map(re.escape, where)), failed)
    assert (
        "emitters/architectures/llama.py and reference/oracle/architectures/llama.py, at layers.3.self_attn.q_rope"
        in failed
    )
    assert failed.index("Failed") < failed.index("Skipped") < failed.index("Passed")


def test_a_suite_has_a_line_for_each_model() -> None:
    page = Page(html.render(suite_sample()))
    assert "16 of 16 models pass. The rest of this page is about smollm2-135m-instruct." in page.text
    assert "15 architectures on cpu in f32: what was compared agrees" in page.text
    assert "#families" in page.attributes("href")
    assert "Conforms: qwen3768/7681.77layers.1.self_attn.probs222327not run8.1 s" in page.text
    assert "16 are allowed" in page.text
    assert not [href for href in page.attributes("href") if "families/" in href]
    assert "Families" not in Page(html.render(sample())).text
    assert len(html.render(suite_sample())) - len(html.render(sample())) < 16_000


def test_a_suite_opens_what_does_not_pass() -> None:
    page = Page(html.render(failing_suite_sample()))
    assert "qwen3 on cpu in f32, first wrong at layers.0.self_attn.q_norm: by all that was compared" in page.text
    assert "14 of 16 models pass." in page.text
    first = page.text.index("tokens equal Hugging Face's emitter/iree-cpu/token.tokens : 79 of 192".replace(" :", ":"))
    assert first < page.text.index("Conforms: llama")
    assert page.attributes("href").count("families/qwen3/report.html") == 1
    assert not [href for href in page.attributes("href") if "gpt_oss" in href]
    opened = [attrs for tag, attrs in page.tags if tag == "details" and "family" in (attrs.get("class") or "")]
    assert [("open" in attrs) for attrs in opened] == [True, True]
    assert (
        "emitters/architectures/qwen3.py and reference/oracle/architectures/qwen3.py, at layers.0.self_attn.q_norm"
        in page.text
    )
    assert "emitters/architectures/llama.py" not in page.text
    assert "See tiny-gpt_oss" in page.text


def test_many_passed_checks_are_folded_and_no_other() -> None:
    record = failing_sample()
    record["checks"] += [record["checks"][0] | {"id": f"more-{i}"} for i in range(20)]
    page, folded = Page(html.render(record)), Page(html.render(record)).text.partition("29 checks passed")[2]
    assert sum("check-" in id_ for id_ in page.attributes("id")) == 34
    assert "emitter/iree-cpu.tokens" not in folded
    assert "oracle.census" not in folded
    assert "more-19" in folded


def test_page_opens_the_prompt_of_the_verdict_and_no_other() -> None:
    def opened(record: Record) -> list[str | None]:
        tags = Page(html.render(record)).tags
        folds = [i for i, (tag, attrs) in enumerate(tags) if tag == "details" and "open" in attrs]
        inside = [next(a["id"] for t, a in tags[i:] if t == "div" and "id" in a) for i in folds]
        return [id for id in inside if id and id.startswith("prompt")]

    assert opened(sample()) == []
    assert opened(failing_sample()) == ["prompt-0"]
    assert opened(near_tie_sample()) == ["prompt-3"]
    record = failing_sample()
    record["verdict"]["prompt"] = "one-token@32"  # the one that does not differ
    assert opened(record) == ["prompt-0"]


def test_what_was_not_compared_does_not_look_like_a_pass() -> None:
    source = html.render(broken_sample())
    page = Page(source)
    states = [attrs["class"] or "" for tag, attrs in page.tags if tag == "td" and "class" in attrs]
    assert sum(state.split()[0] == "failed" for state in states if state.strip()) == 12
    assert "18 of 30 compared" in page.text
    assert "NaN of the limit" in source
    assert "Nothing was compared." in Page(html.render(empty_sample())).text
    record = sample()
    record["checks"][0]["status"] = "skipped"
    del record["tokens"]["chat@64"]["cells"]["oracle/iree-cpu"]
    page = Page(html.render(record))
    rows = [attrs["class"] for tag, attrs in page.tags if tag == "tr" and "id" in attrs]
    assert rows == ["skip", "skip", *["pass"] * 12]
    assert "29 of 30 compared" in page.text


@pytest.mark.parametrize("total", [0, 1, 2, 500])
def test_page_of_any_number_of_tokens(total: int) -> None:
    record = failing_sample()
    prompt = record["prompts"][0]
    truth = prompt["truth"]
    truth |= {"tokens": [1] * total, "pieces": ["a"] * total, "gaps": [None] * total}
    entry = record["tokens"]["chat@64"]
    for cell in entry["cells"].values():
        cell |= {"tokens": [], "pieces": [], "errors": [], "agreed": 0, "total": total}
        cell["first_mismatch"] = 0 if total else None
    entry |= {"agreed": 0, "total": total}
    validate(record)
    page = Page(html.render(record))
    assert ("≠ none" in page.text) == (total > 0)
    assert ("25 of 30 compared" in page.text) == (total == 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str) -> None:
    """WCAG 2 AA: 4.5 for text, 3 for what is drawn."""
    style = resources.files("hloracle.reports").joinpath("templates/report.css").read_text("utf-8")
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in style.split("* {")[0].split("@media"))
    colours = light if scheme == "light" else {**light, **dark}

    def contrast(a: str, b: str) -> float:
        high, low = sorted((luminance(colours[a]), luminance(colours[b])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    grounds = ["page", "raised", "sunken", "pass-tint", "fail-tint", "near-tint", "skip-tint"]
    pairs = [(t, g) for t in ("text", "muted") for g in grounds]
    pairs += [(k, g) for k in ("pass", "fail", "near", "skip") for g in (f"{k}-tint", "raised", "page")]
    pairs += [("link", "page"), ("link", "raised"), ("fail", "page"), ("near", "page")]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}
    # The cross that says "over the limit" on each shade that is.
    crossed = {f"h{n}": contrast("cross", f"h{n}") for n in range(5, 9)}
    assert {shade: c for shade, c in crossed.items() if c < 3} == {}
    drawn = [("near", "raised"), ("near", "fail-tint"), ("text", "fail-tint"), ("emitter", "fail-tint")]
    drawn += [("oracle", "raised"), ("emitter", "raised"), ("pass-tick", "raised"), ("fail-line", "fail-tint")]
    assert {pair: contrast(*pair) for pair in drawn if contrast(*pair) < 3} == {}
