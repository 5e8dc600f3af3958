// Wires the page's controls to a conversation, the microphone and the loudspeaker.

import { Conversation } from "./conversation.js";
import { draw } from "./drawing.js";
import { Microphone, Speaker, fromBase64, toBase64 } from "./sound.js";
import { timeline } from "./timeline.js";
import { Waveform } from "./waveform.js";

const MOST_TURNS = 200;
// What the model that comes with antiphon can answer; it answers the same questions when it hears them.
const PROMPTS = {
  "antiphon-demo": [
    "What is antiphon?",
    "What are the stages?",
    "How does it work?",
    "What is two plus three?",
    "Tell me a joke.",
    "Repeat after me: the sea is blue and warm.",
  ],
};
const END_PX = 48; // a view that ends so close to the last turn follows it

const at = (id) => document.getElementById(id);
const page = {
  conversation: null,
  microphone: null,
  speaker: null,
  detectsTurns: false,
  takesAudio: true,
  writes: true, // answers may come as text alone
  model: null, // as `GET v1/models` describes it
  drawing: null, // aborts the answer with images that is being made
  answering: null, // id of the response that is being made
  interrupted: null, // id of the response whose remaining audio is not played
  spoken: null, // ids of the item, and of its response, that the loudspeaker was given last
  answers: new Map(), // list items by the id of the answer they show
};

const waveform = new Waveform(at("waveform"), function* () {
  if (page.microphone) yield { analyser: page.microphone.analyser, colour: "borderTopColor" };
  if (page.speaker?.playing) yield { analyser: page.speaker.analyser, colour: "color" };
});

function show(state) {
  at("state").textContent = state;
}

function refresh() {
  const open = page.conversation?.open ?? false;
  for (const id of ["text", "send", "voice"]) at(id).disabled = !open;
  at("talk").disabled = !(open && page.takesAudio);
  at("output").disabled = !(open && page.writes);
  for (const button of at("prompts").querySelectorAll("button")) button.disabled = !open;
  at("interrupt").disabled = !(page.answering || page.drawing || page.speaker?.playing);
  at("talk").setAttribute("aria-pressed", String(page.microphone !== null));
  waveform.start();
}

function addTurn(who, text) {
  const turn = document.createElement("li");
  turn.className = who === "You" ? "user" : "answer";
  const label = document.createElement("p");
  label.className = "who";
  label.textContent = who;
  const words = document.createElement("p");
  words.textContent = text;
  turn.append(label, words);
  at("turns").append(turn);
  while (at("turns").childElementCount > MOST_TURNS) at("turns").firstElementChild.remove();
  return { turn, words };
}

/** Keeps the end of the conversation in view while it grows, unless the reader has scrolled away. */
function followTurns() {
  const view = document.querySelector("main");
  let atEnd = true;
  let top = 0;
  view.addEventListener("scroll", () => {
    // Growth of the content moves its end away; only the reader moves the view up.
    const wasMovedUp = view.scrollTop < top;
    top = view.scrollTop;
    atEnd = view.scrollHeight - top - view.clientHeight < END_PX || (atEnd && !wasMovedUp);
  });
  const follow = () => {
    if (atEnd) view.scrollTop = view.scrollHeight;
  };
  const sizes = new ResizeObserver(follow);
  sizes.observe(view);
  sizes.observe(at("turns"));
  return () => {
    atEnd = true;
    follow();
  };
}

const scrollToEnd = followTurns();

function answerOf(id) {
  if (!page.answers.has(id)) {
    page.answers.set(id, addTurn("antiphon", ""));
    if (page.answers.size > MOST_TURNS) page.answers.delete(page.answers.keys().next().value);
  }
  return page.answers.get(id);
}

function appendText({ response_id, delta }) {
  answerOf(response_id).words.textContent += delta;
}

/** Stop the loudspeaker, and report how much of the answer was heard. */
function hush() {
  const { speaker, conversation, spoken } = page;
  // The loudspeaker may have run dry while more of the same answer is on its way.
  if (!spoken || !(speaker.playing || spoken.response === page.answering)) return;
  page.spoken = null;
  const heardMs = speaker.playedMs(spoken.item);
  speaker.clear();
  if (heardMs) {
    const heard = { item_id: spoken.item, content_index: 0, audio_end_ms: heardMs };
    conversation.send("conversation.item.truncate", heard);
  }
}

/** The realtime API has no images; they are asked for elsewhere. */
const realtimeOutput = () => (at("output").value === "audio" ? "audio" : "text");

const on = {
  "session.created": ({ session }) => {
    at("model").textContent = session.model;
    // A model that does not speak says so.
    const speaks = session.output_modalities[0] === "audio";
    for (const option of at("output").options) {
      if (option.value === "audio") option.hidden = option.disabled = !speaks;
    }
    if (!speaks && at("output").value === "audio") at("output").value = "text";
    suggest(PROMPTS[session.model] ?? []);
    showModel(at("key").value).catch((error) => show(`The model cannot be described: ${error.message}`));
    page.conversation.update({
      output_modalities: [realtimeOutput()],
      audio: {
        input: {
          turn_detection: { type: "server_vad", create_response: true, interrupt_response: true },
          transcription: { model: session.model },
        },
      },
      antiphon: { timeline: true },
    });
  },
  "session.updated": ({ session }) => {
    page.detectsTurns = Boolean(session.audio.input.turn_detection);
    show("Connected.");
    refresh();
  },
  "input_audio_buffer.speech_started": () => {
    hush();
    show("Listening …");
    refresh();
  },
  "input_audio_buffer.committed": ({ item_id }) => {
    page.answers.set(item_id, addTurn("You", "(spoken)"));
    show("Understood …");
  },
  "conversation.item.input_audio_transcription.completed": ({ item_id, transcript }) => {
    const turn = page.answers.get(item_id);
    if (turn && transcript) turn.words.textContent = transcript;
  },
  "response.created": ({ response }) => {
    page.answering = response.id;
    answerOf(response.id);
    show("Answering …");
    refresh();
  },
  "response.output_text.delta": appendText,
  "response.output_audio_transcript.delta": appendText,
  "response.output_audio.delta": ({ response_id, item_id, delta }) => {
    // Sent before the gateway received the cancel.
    if (response_id === page.interrupted) return;
    if (!page.speaker) return;
    page.spoken = { item: item_id, response: response_id };
    page.speaker.play(item_id, fromBase64(delta));
    refresh();
  },
  "response.done": ({ response }) => {
    page.answering = null;
    const { status, status_details: details } = response;
    show(status === "completed" ? "Ready." : `The answer is ${status}.`);
    if (status === "failed") {
      const { turn, words } = answerOf(response.id);
      turn.classList.add("fault");
      words.textContent += details.error.message ?? details.error.code;
    }
    refresh();
  },
  "antiphon.response.timeline": ({ response_id, stages }) => {
    answerOf(response_id).turn.append(timeline(stages));
  },
  error: ({ error }) => {
    addTurn("Error", error.message).turn.classList.add("fault");
  },
};

/** Offers the voices of the model, and only what it can do. */
async function showModel(key) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = await fetch("v1/models", { headers });
  if (!answer.ok) return;
  const [model] = (await answer.json()).data;
  at("voice").replaceChildren(...model.voices.map((name) => new Option(name, name)));
  page.takesAudio = model.input_kinds.includes("audio");
  page.writes = !model.reads_aloud;
  page.model = model;
  const draws = model.outputs.includes("image");
  for (const option of at("output").options) {
    if (option.value === "image") option.hidden = option.disabled = !draws;
  }
  if (!draws && at("output").value === "image") at("output").value = "text";
  // Without a voice such a model may choose another one for each text.
  if (model.reads_aloud && model.voices.length) {
    page.conversation.update({ audio: { output: { voice: model.voices[0] } } });
  }
  refresh();
}

function connect() {
  page.conversation?.close();
  page.answering = null;
  const key = at("key").value;
  show("Connecting …");
  const closed = async (reason, needsKey) => {
    show(reason);
    if (needsKey) at("key").focus();
    await stopTalking();
    refresh();
  };
  const lost = () => {
    show("The connection is lost; trying again …");
    refresh();
  };
  const resumed = () => {
    show("Connected again.");
    refresh();
  };
  page.conversation = new Conversation({ key, on, waits: show, lost, resumed, closed });
}

/** A browser lets sound begin only after somebody has touched the page. */
async function wakeSpeaker() {
  page.speaker ??= await Speaker.open(refresh);
  await page.speaker.context.resume();
}

async function startTalking() {
  await wakeSpeaker();
  page.microphone = await Microphone.open((samples) => {
    page.conversation.send("input_audio_buffer.append", { audio: toBase64(samples) });
  });
  show(page.detectsTurns ? "Speak; a pause ends your turn." : "Speak; press Talk again to end your turn.");
}

async function stopTalking() {
  if (!page.microphone) return;
  const microphone = page.microphone;
  page.microphone = null;
  await microphone.close();
  if (page.detectsTurns) {
    page.conversation.send("input_audio_buffer.clear");
  } else {
    page.conversation.send("input_audio_buffer.commit");
    page.conversation.send("response.create");
  }
}

async function say(text) {
  await wakeSpeaker();
  interrupt();
  addTurn("You", text);
  scrollToEnd();
  if (at("output").value === "image") await showDrawing(text);
  else page.conversation.say(text);
}

/** Shows an answer with images as it is made. Each is by itself: the conversation does not have it. */
async function showDrawing(text) {
  const drawing = (page.drawing = new AbortController());
  const { turn, words } = addTurn("antiphon", "");
  const steps = document.createElement("progress");
  steps.setAttribute("aria-label", "Progress");
  turn.append(steps);
  show("Answering …");
  refresh();
  let end = "Ready.";
  try {
    await draw({
      key: at("key").value,
      model: page.model,
      text,
      signal: drawing.signal,
      onText: (more) => {
        words.textContent += more;
      },
      onImage: (url) => {
        const image = document.createElement("img");
        image.alt = `Image for: ${text}`;
        image.src = url;
        steps.before(image);
      },
      onSteps: ({ stage, done, due }) => {
        steps.max = due;
        steps.value = done;
        steps.title = `${stage}: ${done} of ${due} steps`;
      },
    });
  } catch (error) {
    end = drawing.signal.aborted ? "The answer is cancelled." : "The answer is failed.";
    if (!drawing.signal.aborted) {
      turn.classList.add("fault");
      words.textContent += error.message;
    }
  }
  steps.remove();
  if (page.drawing !== drawing) return; // another one has begun
  page.drawing = null;
  show(end);
  refresh();
}

function suggest(prompts) {
  const items = prompts.map((prompt) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = prompt;
    button.addEventListener("click", () => say(prompt));
    const item = document.createElement("li");
    item.append(button);
    return item;
  });
  at("prompts").replaceChildren(...items);
  at("prompts").hidden = items.length === 0;
}

at("typed").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text) return;
  at("text").value = "";
  await say(text);
});

at("talk").addEventListener("click", async () => {
  try {
    await (page.microphone ? stopTalking() : startTalking());
  } catch (error) {
    show(`The microphone cannot be used: ${error.message}`);
  }
  refresh();
});

function interrupt() {
  page.drawing?.abort();
  if (page.answering) {
    page.interrupted = page.answering;
    page.conversation.send("response.cancel");
  }
  hush();
  refresh();
}

at("interrupt").addEventListener("click", interrupt);
at("voice").addEventListener("change", () => {
  page.conversation.update({ audio: { output: { voice: at("voice").value } } });
});
at("output").addEventListener("change", () => {
  page.conversation.update({ output_modalities: [realtimeOutput()] });
});
at("settings").addEventListener("submit", (event) => {
  event.preventDefault();
  connect();
});

connect();
