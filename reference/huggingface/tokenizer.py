"""Text as token ids, as transformers has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hloracle.core.errors import InputError


def has_tokenizer(directory: Path) -> bool:
    """Whether a checkpoint has a tokenizer that transformers can read."""
    return (directory / "tokenizer.json").is_file()


def load_tokenizer(directory: Path) -> Any:
    """transformers' tokenizer of a checkpoint directory. Raises InputError if there is none that loads."""
    import transformers

    transformers.logging.set_verbosity_error()
    if not has_tokenizer(directory):
        raise InputError("has no tokenizer.json", directory, "name a checkpoint with a tokenizer")
    try:
        return transformers.AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception for a damaged file
        raise InputError(
            f"its tokenizer does not load ({error})", directory, "restore the tokenizer's files"
        ) from error


def encode(tokenizer: Any, text: str, chat: bool) -> list[int]:
    """Token ids of a prompt, inside the chat template (as a user's message) when asked for and there is one."""
    if chat and tokenizer.chat_template:
        messages = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])
    return list(tokenizer(text)["input_ids"])
