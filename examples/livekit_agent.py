"""A LiveKit agent that answers with the served model, using the realtime API.

`python livekit_agent.py console` lets you talk using your microphone and loudspeakers, without a
LiveKit server. `python livekit_agent.py dev` joins the rooms of the server in $LIVEKIT_URL.
"""

import os

from livekit.agents import (
    Agent,
    AgentServer,
    AgentSession,
    ConversationItemAddedEvent,
    ErrorEvent,
    JobContext,
    cli,
)
from livekit.plugins import openai
from openai import AsyncOpenAI

# LiveKit provides the command line.
URL = os.environ.get("ANTIPHON_URL", "http://localhost:8000")
INSTRUCTIONS = os.environ.get("ANTIPHON_INSTRUCTIONS", "")

server = AgentServer()


@server.rtc_session()
async def converse(job: JobContext) -> None:
    """Hold one conversation, either in a room or in the terminal."""
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none") as api:
        model = (await api.models.list()).data[0].id
    session = AgentSession(
        llm=openai.realtime.RealtimeModel(model=model, base_url=f"{URL}/v1", api_key="none")
    )

    @session.on("conversation_item_added")
    def _(event: ConversationItemAddedEvent) -> None:
        if event.item.type == "message":
            speaker = "You" if event.item.role == "user" else "Model"
            print(f"{speaker}: {event.item.text_content}", flush=True)

    @session.on("error")
    def _(event: ErrorEvent) -> None:
        print(f"Error: {event.error}", flush=True)

    await session.start(Agent(instructions=INSTRUCTIONS), room=job.room)


if __name__ == "__main__":
    cli.run_app(server)
