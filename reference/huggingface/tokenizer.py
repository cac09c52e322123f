"""Text as token ids, as transformers has it. A tokenizer and its chat template are somebody else's: they may fail, or not end."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hloracle.core.errors import InputError, told
from hloracle.core.shown import quoted

# What none takes a hundredth of, on a machine that is busy.
LOADING_SECONDS, ENCODING_SECONDS = 120.0, 30.0
FIX = "restore the tokenizer's files"
Answer = TypeVar("Answer")


def has_tokenizer(directory: Path) -> bool:
    """Whether a checkpoint has a tokenizer that transformers can read."""
    return (directory / "tokenizer.json").is_file()


def load_tokenizer(directory: Path) -> Any:
    """transformers' tokenizer of a checkpoint directory. Raises InputError if there is none that loads."""
    import transformers

    transformers.logging.set_verbosity_error()
    if not has_tokenizer(directory):
        raise InputError("has no tokenizer.json", directory, "name a checkpoint with a tokenizer")

    def load() -> Any:
        return transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)

    return _within(LOADING_SECONDS, load, "its tokenizer does not load", directory)


def encode(tokenizer: Any, text: str, chat: bool) -> list[int]:
    """Token ids of a prompt, inside the chat template (as a user's message) when asked for and there is one.

    Raises InputError where the tokenizer or the template fails, does not end, or makes nothing of the prompt.
    """
    if not _encodable(text):
        raise InputError("is not text (some of it is no UTF-8)", f"the prompt {quoted(text)}", "give it in UTF-8")
    messages, where = [{"role": "user", "content": text}], tokenizer.name_or_path

    def templated() -> list[int]:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])

    if chat and tokenizer.chat_template:
        ids = _within(ENCODING_SECONDS, templated, "its chat template fails", where)
    else:
        ids = _within(ENCODING_SECONDS, lambda: list(tokenizer(text)["input_ids"]), "its tokenizer fails", where)
    if not ids:
        raise InputError(f"its tokenizer makes no token of {quoted(text)}", where, f"give another prompt, or {FIX}")
    return ids


def _encodable(text: str) -> bool:
    """Whether a text has bytes in UTF-8: half of a surrogate pair has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown(ids: Sequence[int], vocab_size: int, directory: Path) -> None:
    """Raises InputError for token ids that the model does not have."""
    if (largest := max(ids)) >= vocab_size:
        what = f"its tokenizer makes token {largest} of a prompt, and vocab_size is {vocab_size}"
        raise InputError(what, directory, "use the tokenizer that belongs to the model")


def _within(seconds: float, work: Callable[[], Answer], what: str, where: object) -> Answer:
    """What `work` returns. Raises InputError with the words `what` where it raises anything, or takes longer."""
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((work(), None))
        except BaseException as error:  # what is written in Rust panics with one that is no Exception
            answers.put((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise InputError(f"{what}: it took more than {seconds:.0f} s", where, FIX) from None
    if error is not None:
        raise InputError(f"{what} ({told(error)})", where, FIX) from error
    return answer  # type: ignore[no-any-return]
