"""Stage chat: open the last checkpoint as the chat page would, and have it answer.

The page itself is `python -m app.chat`: a server would never end a stage.
"""

import threading

from app.reply import Settings, answer
from app.runs import load
from config.errors import run_main
from config.files import write_json
from config.paths import TRAINING_STAGES
from config.profile import read_section
from data.conversation import user
from evals.config import EvaluateConfig
from stages.process import start

DEFAULT_PROMPTS = ("Hello!",)


def main() -> None:
    paths = start("chat")
    prompts = read_section(paths, "evaluate", EvaluateConfig).chat_prompts
    model = load(paths.model(TRAINING_STAGES[-1]))
    settings = Settings(temperature=0, seed=0, max_tokens=64)
    chats = []
    for prompt in prompts or DEFAULT_PROMPTS:
        *_, last = answer(model, (user(prompt),), settings, threading.Event())
        chats.append({"prompt": prompt, "reply": last.message.text})
        print(f"> {prompt}\n{last.message.text}\n")
    write_json(paths.run / "chat.json", {"chats": chats})
    print(f"talk to it: python -m app.chat --run {paths.model(TRAINING_STAGES[-1])}")


if __name__ == "__main__":
    run_main(main)
