// Wires the page's controls to a conversation, the microphone and the loudspeaker.

import { Conversation } from "./conversation.js";
import { draw } from "./drawing.js";
import { EventLog } from "./events.js";
import { showCall } from "./functions.js";
import { itemsOf, keepTurns, keptTurns } from "./history.js";
import { isLoading, promptsFor, servedModel, voiceSample } from "./model.js";
import { Panes } from "./panes.js";
import { EVENT_PREFIX, Settings } from "./settings.js";
import { Microphone, Speaker, fromBase64, toBase64 } from "./sound.js";
import { Turns } from "./turns.js";
import { readRecording } from "./wav.js";
import { Waveform } from "./waveform.js";

const WITH_ROOM = matchMedia("(min-width: 60rem)");
const ENDED = {
  completed: "Ready.",
  incomplete: "The answer reached its length limit.",
  cancelled: "The answer was cancelled.",
  failed: "The answer failed.",
}; // by the status of a response
const SPOKEN = "(spoken)"; // until the words are known

const at = (id) => document.getElementById(id);
const page = {
  conversation: null,
  microphone: null,
  speaker: null,
  detectsTurns: false,
  model: null, // as `GET v1/models` describes it
  drawing: null, // aborts the answer with images that is being made
  answering: null, // id of the response that is being made
  interrupted: null, // id of the response whose remaining audio is not played
  spoken: null, // ids of the item, and of its response, that the loudspeaker was given last
  shown: new Map(), // turns by the id of the response or item that they show
  turnEndedAt: 0, // when the user's last turn ended
  begunAt: new Map(), // that, by the id of the response
  openCalls: 0, // of functions, whose results are awaited
  replays: 0,
};

const turns = new Turns(at("turns"), document.querySelector("main"), replay);
const settings = new Settings((session, id) => page.conversation?.update(session, id));
const panes = new Panes([at("show-settings"), at("show-events")]);
const log = new EventLog({
  list: at("log"),
  filter: at("filter"),
  copy: at("copy-events"),
  clear: at("clear-events"),
});
const waveform = new Waveform(
  at("waveform"),
  function* () {
    const { microphone, speaker } = page;
    if (microphone) yield { analyser: microphone.analyser, colour: "borderTopColor", isMicrophone: true };
    if (speaker?.playing) yield { analyser: speaker.analyser, colour: "color" };
  },
  (level) => at("talk").style.setProperty("--level", level.toFixed(2)),
);

function show(state) {
  at("state").textContent = state;
}

function refresh() {
  const { model } = page;
  const open = page.conversation?.open ?? false;
  at("state").classList.toggle("open", open);
  for (const id of ["text", "send", "voice"]) at(id).disabled = !open;
  at("preview").disabled = !(open && at("voice").options.length);
  at("talk").disabled = !(open && (model?.input_kinds.includes("audio") ?? true));
  at("output").disabled = !(open && !model?.reads_aloud);
  for (const button of at("prompts").querySelectorAll("button")) button.disabled = !open;
  at("interrupt").disabled = !(page.answering || page.drawing || page.speaker?.playing);
  at("talk").setAttribute("aria-pressed", String(page.microphone !== null));
  waveform.start();
}

function addTurn(who, text) {
  const turn = turns.add(who, text);
  refreshWelcome();
  return turn;
}

/** Suggestions are above the field for text once there are turns. */
function refreshWelcome() {
  const isEmpty = turns.records.length === 0;
  at("welcome").hidden = !isEmpty;
  at("forget").hidden = isEmpty;
  if (isEmpty) at("welcome").append(at("prompts"));
  else at("typed").before(at("prompts"));
}

const keep = () => keepTurns(turns.records);

function turnOf(id, who = "antiphon", text = "") {
  if (!page.shown.has(id)) page.shown.set(id, addTurn(who, text));
  return page.shown.get(id);
}

function heardFirst(responseId, first) {
  const begunAt = page.begunAt.get(responseId);
  if (begunAt) turnOf(responseId).heardAfter(performance.now() - begunAt, first);
}

function appendText({ response_id, delta }) {
  turnOf(response_id).append(delta);
}

function appendWords({ item_id, delta }) {
  const turn = page.shown.get(item_id);
  if (!turn) return;
  if (turn.record.unheard) turn.text = "";
  turn.record.unheard = false;
  turn.append(delta);
}

/** Stop the loudspeaker, and report how much of the answer was heard. */
function hush() {
  const { speaker, conversation, spoken } = page;
  // The loudspeaker may have run dry while more of the same answer is on its way.
  const speaks = spoken && (speaker.playing || spoken.response === page.answering);
  if (speaks) {
    page.spoken = null;
    const heardMs = speaker.playedMs(spoken.item);
    if (heardMs) {
      const heard = { item_id: spoken.item, content_index: 0, audio_end_ms: heardMs };
      conversation.send("conversation.item.truncate", heard);
    }
  }
  if (speaks || speaker?.playing) speaker.clear();
}

const on = {
  "session.created": async ({ session }) => {
    at("model").textContent = session.model;
    const { conversation } = page;
    let model = null;
    try {
      if (await isLoading()) {
        if (conversation !== page.conversation) return;
        show("The model is still loading …");
        conversation.tryAgain();
        refresh();
        return;
      }
      model = await servedModel(settings.key);
    } catch (error) {
      show(`Can't load the model's description: ${error.message}`);
    }
    if (conversation !== page.conversation) return;
    // A model that does not speak says so.
    const speaks = session.output_modalities[0] === "audio";
    for (const option of at("output").options) {
      if (option.value === "audio") option.hidden = option.disabled = !speaks;
    }
    if (!speaks && at("output").value === "audio") at("output").value = "text";
    settings.begin(session.model);
    if (!model) return;
    page.model = model;
    settings.showModel(model, session.audio.output.voice);
    showModel(model);
    // A model that reads aloud would speak the earlier texts again.
    if (!model.reads_aloud) itemsOf(turns.records).forEach((item) => conversation.add(item));
    refresh();
  },
  "session.updated": ({ session }) => {
    page.detectsTurns = Boolean(session.audio.input.turn_detection);
    if (!page.answering && !page.microphone) show("Connected.");
    refresh();
  },
  "input_audio_buffer.speech_started": () => {
    hush();
    show("Listening …");
    refresh();
  },
  "input_audio_buffer.speech_stopped": () => {
    page.turnEndedAt = performance.now();
  },
  "input_audio_buffer.committed": ({ item_id }) => {
    if (!page.detectsTurns) page.turnEndedAt = performance.now();
    turnOf(item_id, "You", SPOKEN).record.unheard = true;
    show("Understood …");
  },
  "conversation.item.input_audio_transcription.delta": appendWords,
  "conversation.item.input_audio_transcription.completed": ({ item_id, transcript }) => {
    const turn = page.shown.get(item_id);
    if (!turn || !transcript) return;
    turn.text = transcript;
    turn.record.unheard = false;
    keep();
  },
  "response.created": ({ response }) => {
    page.answering = response.id;
    page.begunAt.set(response.id, page.turnEndedAt);
    turnOf(response.id);
    show("Answering …");
    refresh();
  },
  "response.output_text.delta": (event) => {
    heardFirst(event.response_id, "word");
    appendText(event);
  },
  "response.output_audio_transcript.delta": appendText,
  "response.output_audio.delta": ({ response_id, item_id, delta }) => {
    // Sent before the gateway received the cancel.
    if (response_id === page.interrupted) return;
    heardFirst(response_id, "sound");
    const samples = fromBase64(delta);
    turnOf(response_id).addSound(samples);
    if (!page.speaker) return;
    page.spoken = { item: item_id, response: response_id };
    page.speaker.play(item_id, samples);
    refresh();
  },
  "response.output_item.done": ({ response_id, item }) => {
    if (item.type !== "function_call") return;
    page.openCalls += 1;
    showCall(turnOf(response_id), item, (output) => {
      page.openCalls -= 1;
      page.conversation.add({ type: "function_call_output", call_id: item.call_id, output });
      if (page.openCalls) return;
      page.turnEndedAt = performance.now();
      page.conversation.send("response.create");
    });
  },
  "response.done": ({ response }) => {
    page.answering = null;
    page.begunAt.delete(response.id);
    const { status, status_details: details } = response;
    show(ENDED[status]);
    const turn = turnOf(response.id);
    if (status === "failed") turn.fail(details.error.message ?? details.error.code);
    if (settings.realtimeOutput === "text") at("said").textContent = turn.record.text;
    turn.offerSound();
    turns.boundSound();
    keep();
    refresh();
  },
  "antiphon.response.timeline": ({ response_id, stages }) => {
    turnOf(response_id).addTimeline(stages);
    keep();
  },
  error: ({ error }) => {
    if (error.event_id?.startsWith(EVENT_PREFIX)) {
      settings.showFault(error.message);
      show("A setting was rejected. For details, see Settings.");
    } else {
      addTurn("Error", "").fail(error.message);
    }
  },
};

/** Shows only what the model can do. */
function showModel(model) {
  suggest(promptsFor(model));
  const hears = model.input_kinds.includes("audio");
  document.body.classList.toggle("reading", model.reads_aloud);
  at("talk").hidden = !hears;
  at("send").classList.toggle("primary", !hears);
  at("send").textContent = model.reads_aloud ? "Speak" : "Send";
  at("text").rows = model.reads_aloud ? 3 : 1;
  at("text").placeholder = model.reads_aloud ? "Text to read aloud" : "Type a message";
  at("greeting").textContent = model.reads_aloud ? `Have ${model.id} read a text aloud` : `Talk with ${model.id}`;
  at("hint").textContent = model.reads_aloud
    ? "Type a text. You can choose the voice and how it speaks in Settings."
    : hears
      ? "Press Talk and speak, or type. You can interrupt an answer at any time."
      : "Type a message.";
  // How to speak is half of what such a model is asked for.
  if (model.reads_aloud && WITH_ROOM.matches) panes.show(at("settings"));
}

function connect() {
  page.conversation?.close();
  page.answering = null;
  page.openCalls = 0;
  show("Connecting …");
  const closed = async (reason, needsKey) => {
    show(reason);
    if (needsKey) panes.open(at("settings"), at("key"));
    await stopTalking();
    refresh();
  };
  const lost = () => {
    show("Connection lost. Reconnecting …");
    refresh();
  };
  const resumed = () => {
    show("Reconnected.");
    refresh();
  };
  const note = (direction, event) => log.note(direction, event);
  page.conversation = new Conversation({ key: settings.key, on, note, waits: show, lost, resumed, closed });
  refresh();
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
  show(page.detectsTurns ? "Speak now. Your turn ends when you pause." : "Speak now. Press Talk again to end your turn.");
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
  await settings.reading;
  interrupt();
  addTurn("You", text);
  turns.scrollToEnd();
  keep();
  page.turnEndedAt = performance.now();
  if (at("output").value === "image") await showDrawing(text);
  else page.conversation.say(text);
}

/** Shows an answer with images as it is made. Each is by itself: the conversation does not have it. */
async function showDrawing(text) {
  const drawing = (page.drawing = new AbortController());
  const turn = addTurn("antiphon", "");
  const steps = document.createElement("progress");
  steps.setAttribute("aria-label", "Progress");
  turn.element.append(steps);
  show("Answering …");
  refresh();
  let end = ENDED.completed;
  try {
    await draw({
      key: settings.key,
      model: page.model,
      text,
      signal: drawing.signal,
      onText: (more) => turn.append(more),
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
    end = drawing.signal.aborted ? ENDED.cancelled : ENDED.failed;
    if (!drawing.signal.aborted) turn.fail(error.message);
  }
  steps.remove();
  keep();
  if (page.drawing !== drawing) return; // another one has begun
  page.drawing = null;
  show(end);
  refresh();
}

/** Plays received samples again. The page does not report the playback to the gateway. */
async function replay(pieces) {
  await wakeSpeaker();
  interrupt();
  page.spoken = null;
  page.replays += 1;
  for (const piece of pieces) page.speaker.play(`replay-${page.replays}`, piece);
  refresh();
}

async function preview() {
  at("preview").disabled = true;
  settings.showFault("");
  try {
    const { key, options } = settings;
    const file = await voiceSample({ key, model: page.model, voice: at("voice").value, options });
    await replay([await readRecording(file)]);
  } catch (error) {
    settings.showFault(`Can't play the voice: ${error.message}`);
  }
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

function interrupt() {
  page.drawing?.abort();
  if (page.answering) {
    page.interrupted = page.answering;
    page.conversation.send("response.cancel");
  }
  hush();
  refresh();
}

at("typed").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text) return;
  at("text").value = "";
  await say(text);
});

at("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("typed").requestSubmit();
});

at("talk").addEventListener("click", async () => {
  try {
    await (page.microphone ? stopTalking() : startTalking());
  } catch (error) {
    show(`Can't use the microphone: ${error.message}`);
  }
  refresh();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !at("interrupt").disabled) interrupt();
});

at("interrupt").addEventListener("click", interrupt);
at("preview").addEventListener("click", preview);
at("forget").addEventListener("click", () => {
  interrupt();
  turns.clear();
  page.shown.clear();
  keep();
  refreshWelcome();
  connect();
  at("text").focus();
});
at("connection").addEventListener("submit", (event) => {
  event.preventDefault();
  connect();
});

for (const record of keptTurns()) turns.restore(record);
refreshWelcome();
connect();
