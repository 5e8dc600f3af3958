// A call with OpenAI's agents library for JavaScript, over a WebSocket. Its argument is the URL.

import assert from "node:assert/strict";
import { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebSocket } from "@openai/agents/realtime";

const QUESTION = "What is antiphon?";
const ANSWER = "Antiphon serves speech models as small services.";
const WAIT_MS = 120_000;

const transport = new OpenAIRealtimeWebSocket({ url: process.argv[2], useInsecureApiKey: true });
const session = new RealtimeSession(new RealtimeAgent({ name: "demo", instructions: "" }), {
  transport,
  tracingDisabled: true,
});

/** Ask, and take what comes until the answer is done; perhaps interrupt it at its first sound. */
function ask({ interrupt = false } = {}) {
  return new Promise((resolve, reject) => {
    let bytes = 0;
    const timer = setTimeout(() => reject(new Error("no answer in time")), WAIT_MS);
    const onAudio = ({ data }) => {
      if (interrupt && bytes === 0) session.interrupt();
      bytes += data.byteLength;
    };
    const onEvent = (event) => {
      if (event.type !== "response.done") return;
      clearTimeout(timer);
      transport.off("audio", onAudio);
      transport.off("*", onEvent);
      resolve({ bytes, status: event.response.status });
    };
    session.once("error", ({ error }) => reject(error));
    transport.on("audio", onAudio);
    transport.on("*", onEvent);
    session.sendMessage(QUESTION);
  });
}

const said = (role) =>
  session.history
    .filter((item) => item.role === role)
    .flatMap((item) => item.content)
    .map((part) => part.text ?? part.transcript ?? "");

await session.connect({ apiKey: "none" });
const first = await ask();
assert.equal(first.status, "completed");
assert(first.bytes > 24_000 * 2);
assert(said("assistant").includes(ANSWER), JSON.stringify(session.history));
const cut = await ask({ interrupt: true });
assert(["cancelled", "completed"].includes(cut.status));
const last = await ask();
assert.equal(last.status, "completed");
assert.equal(said("user").filter((text) => text === QUESTION).length, 3);
session.close();
process.exit(0);
