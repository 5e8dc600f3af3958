"""Start the complete system, run a scripted conversation, and let the user ask questions."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from antiphon.client.aio import AsyncClient
from antiphon.deployment.schema import Deployment, GatewayConfig
from antiphon.errors import AntiphonError
from antiphon_tools.demo.conversation import DemoConversation
from antiphon_tools.demo.display import LEGEND, Display
from antiphon_tools.demo.keyboard import read_line
from antiphon_tools.demo.script import SCRIPT, Question
from antiphon_tools.hub.deployment import with_directories
from antiphon_tools.hub.settings import add_hub_options, hub_settings
from antiphon_tools.launcher.console import Console
from antiphon_tools.launcher.launcher import Launcher, Running

GOODBYES = ("quit", "exit")


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_tools.demo"
) -> int:
    """Run the command line and return its exit status."""
    options = _parser(prog).parse_args(arguments)
    console = Console(sys.stdout, output=False)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        deployment = with_directories(Deployment(model=options.model), hub_settings(options))
        asyncio.run(_demonstrate(deployment, options, console))
    except (AntiphonError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.say("\ninterrupted; all processes were stopped")
        return 130
    return 0


async def _demonstrate(
    deployment: Deployment, options: argparse.Namespace, console: Console
) -> None:
    """Start the deployment, run the conversation, and stop the deployment."""
    gateway = GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0")
    deployment = msgspec.structs.replace(deployment, gateway=gateway)
    launcher = Launcher(deployment, report=console, fork=True)
    console.say("Starting every stage and the gateway, each in a separate process:")
    async with launcher as running:
        name = deployment.model_name or running.model.name
        console.say(f"{name} is ready after {running.startup_s:.1f} s.\n")
        async with AsyncClient(running.grpc_address) as client:
            await _talk(client, running, options, console)
        console.say("Stopping:")
    console.say("All processes have been stopped.")


async def _talk(
    client: AsyncClient, running: Running, options: argparse.Namespace, console: Console
) -> None:
    """Run the script, save the answers, and then let the user ask questions."""
    model = (await client.server_info()).models[0]
    display = Display(sys.stdout)
    conversation = DemoConversation(client, model.voices, options.out, display)
    for scripted in SCRIPT:
        question = scripted.for_inputs(model.input_kinds)
        if question is None:
            continue
        display.ask(question.text, aloud=question.recording is not None)
        await conversation.say(question)
    console.say(LEGEND)
    for line in conversation.save([name for name in running.processes if name != "gateway"]):
        console.say(line)
    console.say()
    if options.interaction and sys.stdin.isatty():
        console.say("Now it's your turn. Type a question, or press Ctrl-D or enter quit to exit.\n")
        await _answer_person(conversation, display, console)


async def _answer_person(
    conversation: DemoConversation, display: Display, console: Console
) -> None:
    """Answer every line that the user types until the end of the input."""
    while True:
        display.prompt()
        line = None
        try:
            line = await read_line(sys.stdin.fileno())
        finally:
            if line is None:
                console.say()
        if line is None or line.lower() in GOODBYES:
            return
        if not line:
            continue
        try:
            await conversation.say(Question(line))
        except AntiphonError as error:
            console.say(f"error: {error}\n")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument(
        "--model",
        default="",
        metavar="MODEL",
        help=(
            "checkpoint directory, or ORG/NAME on the Hugging Face hub (default: the "
            "demonstration model)"
        ),
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("out"),
        help=("directory for the output files (out)"),
    )
    parser.add_argument(
        "--no-interaction",
        dest="interaction",
        action="store_false",
        help="exit after the script (default if stdin is not a terminal)",
    )
    add_hub_options(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
