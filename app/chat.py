"""`python -m app.chat`: serves the chat page on this machine. Nothing it does reaches beyond it."""

import argparse
import errno
import getpass
import hmac
import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from app.reply import ChatModel
from app.runs import ROOT, ModelCache, Run, choose, find_runs, load, open_run
from config.errors import UserError, run_main

HOST, PORT = "127.0.0.1", 7860


def main(argv: Sequence[str] | None = None, load: Callable[[Path], ChatModel] = load, root: Path = ROOT) -> int:
    """Serve the page until Ctrl-C. `load` opens a model's folder; runs are looked for below `root`."""
    options = parse(argv)
    first = open_run(options.run) if options.run else choose(find_runs(root), root)
    require_free(options.host, options.port)
    keep_to_this_machine()
    serve(ModelCache(load), first, partial(find_runs, root), options)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line. UserError for a page that others could reach without a password."""
    parser = argparse.ArgumentParser(prog="python -m app.chat", description="Chat with the model you trained.")
    parser.add_argument("--run", type=Path, metavar="DIR", help="model to open with, e.g. runs/tiny/sft")
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the page (default {PORT})")
    parser.add_argument("--host", default=HOST, help=f"address to listen on (default {HOST}: this machine alone)")
    access = parser.add_mutually_exclusive_group()
    access.add_argument("--password", nargs="?", const="", help="ask for this password; without a value, type it in")
    access.add_argument("--no-auth", action="store_true", help="let anyone who reaches the address chat")
    parser.add_argument("--open", action="store_true", help="open the page in the web browser")
    options = parser.parse_args(argv)
    if not 1 <= options.port <= 65535:
        raise UserError(f"--port is {options.port}, expected 1 to 65535")
    if options.password is None and not options.no_auth and not is_loopback(options.host):
        raise UserError(
            f"--host {options.host} lets other machines reach the page: add --password, or --no-auth to do without"
        )
    if options.password == "":
        if not sys.stdin.isatty():
            raise UserError("--password has no value, and there is no terminal to type it in")
        options.password = getpass.getpass("Password for the page: ")
        if not options.password:
            raise UserError("the password is empty: type one, or use --no-auth")
    return options


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name could mean any address
        return False


def require_free(host: str, port: int) -> None:
    """UserError if the page could not listen there: the port is taken, or the address is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use: end what uses it, or choose another with --port") from None
        if error.errno == errno.EACCES:
            raise UserError(f"port {port} is reserved for the system: choose one above 1023 with --port") from None
        raise UserError(f"can't listen on {host}, port {port}: {error.strerror or error}") from None


def keep_to_this_machine() -> None:
    """Set the environment so that no library calls home, and no proxy stands before our own address.

    Before gradio, huggingface_hub and torch are imported: they read it then.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    for name in ("NO_PROXY", "no_proxy"):
        known = os.environ.get(name, "")
        os.environ[name] = ",".join(filter(None, (known, "127.0.0.1", "localhost", "::1")))
    # Idle OpenMP threads sleep: two tabs on two cores would otherwise spend their time waiting for each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def serve(models: ModelCache, first: Run, runs: Callable[[], list[Run]], options: argparse.Namespace) -> None:
    """Start the page, say where it is, and wait for Ctrl-C."""
    from app import page
    from app.theme import look

    password = options.password
    blocks = page.build(models, first, runs)
    try:
        blocks.launch(
            server_name=options.host,
            server_port=options.port,
            auth=(lambda _, given: hmac.compare_digest(given.encode(), password.encode())) if password else None,
            auth_message="Any user name will do." if password else None,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            run_history=False,
            enable_monitoring=False,
            mcp_server=False,
            pwa=False,
            footer_links=[],
            show_error=False,
            inbrowser=options.open,
            favicon_path=look.ICON_FILE,
            theme=look.theme(),
            css_paths=[look.CSS_FILE],
        )
    except OSError as error:  # taken in the meantime
        raise UserError(f"port {options.port} can't be used ({error}): choose another with --port") from None
    shown = f"[{options.host}]" if ":" in options.host else options.host
    print(f"Tandem is at http://{shown}:{options.port} ({first.label}). Ctrl-C ends it.", flush=True)
    # Torch and the weights are read once the page is up; what goes wrong is told again when a message is sent.
    threading.Thread(target=_warm, args=(models, first), name="warm", daemon=True).start()
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
    blocks.close(verbose=False)


def _warm(models: ModelCache, first: Run) -> None:
    try:
        models.get(first)
    except Exception as error:
        print(f"error: {first.label}: {error}", file=sys.stderr)


if __name__ == "__main__":
    run_main(main)
