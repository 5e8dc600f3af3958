// The settings pane: what the user chooses, as changes of the session.

import { keepSettings, keptSettings } from "./history.js";
import { showOptions } from "./options.js";

// Of the functions that the model which comes with antiphon can call.
const EXAMPLE_TOOLS = [
  {
    type: "function",
    name: "get_time",
    description: "The time in a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];
/** Begins the ids of the events that change settings, by which their errors are known. */
export const EVENT_PREFIX = "settings-";

const at = (id) => document.getElementById(id);
const KEPT = ["voice", "output", "instructions", "turn-detection", "silence", "threshold", "eagerness", "temperature", "tools", "key"];

function turnDetection() {
  const type = at("turn-detection").value;
  if (type === "none") return null;
  const common = { type, create_response: true, interrupt_response: true };
  if (type === "semantic_vad") return { ...common, eagerness: at("eagerness").value };
  const number = (id) => (at(id).value === "" ? undefined : at(id).valueAsNumber);
  return { ...common, silence_duration_ms: number("silence"), threshold: number("threshold") };
}

function tools() {
  const text = at("tools").value.trim();
  const given = text ? JSON.parse(text) : [];
  if (!Array.isArray(given)) throw new SyntaxError("give a list of functions");
  return given;
}

/** `send(session, id)` sends a change of the session, with an id for the event. */
export class Settings {
  #sent = 0;
  #model = null;
  #options = {}; // the values by name, recordings too

  constructor(send) {
    this.send = send;
    const kept = keptSettings();
    for (const id of KEPT) if (kept[id] !== undefined && id !== "voice") at(id).value = kept[id];
    this.#options = kept.options ?? {};
    this.keptVoice = kept.voice;
    this.reading = null; // ends once the last recording is read
    const changes = {
      voice: () => ({ audio: { output: { voice: at("voice").value } } }),
      output: () => ({ output_modalities: [this.realtimeOutput] }),
      instructions: () => ({ instructions: at("instructions").value }),
      temperature: () => this.#sampling(),
      tools: () => ({ tools: tools() }),
    };
    for (const [id, change] of Object.entries(changes)) {
      at(id).addEventListener("change", () => this.#apply(change));
    }
    for (const id of ["turn-detection", "silence", "threshold", "eagerness"]) {
      at(id).addEventListener("change", () => {
        this.#showTurns();
        this.#apply(() => ({ audio: { input: { turn_detection: turnDetection() } } }));
      });
    }
    at("tools-example").addEventListener("click", () => {
      at("tools").value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
      this.#apply(changes.tools);
    });
    at("preferences").addEventListener("submit", (event) => event.preventDefault());
    at("key").addEventListener("change", () => this.#keep());
    this.#showTurns();
  }

  get key() {
    return at("key").value;
  }

  /** The realtime API has no images; they are asked for elsewhere. */
  get realtimeOutput() {
    return at("output").value === "audio" ? "audio" : "text";
  }

  get options() {
    return this.#options;
  }

  /** What a session of a model begins with, besides what `showModel` sends. */
  begin(model) {
    this.send(
      {
        output_modalities: [this.realtimeOutput],
        audio: {
          input: {
            turn_detection: { type: "server_vad", create_response: true, interrupt_response: true },
            transcription: { model },
          },
        },
        antiphon: { timeline: true },
      },
      undefined,
    );
    this.showFault("");
    if (at("instructions").value) this.#apply(() => ({ instructions: at("instructions").value }));
    if (at("turn-detection").value !== "server_vad" || at("silence").value || at("threshold").value) {
      this.#apply(() => ({ audio: { input: { turn_detection: turnDetection() } } }));
    }
    if (at("temperature").value) this.#apply(() => this.#sampling());
    if (at("tools").value.trim()) this.#apply(() => ({ tools: tools() }));
    if (Object.keys(this.#options).length) {
      this.#apply(() => ({ antiphon: { options: this.#options } }));
    }
  }

  /** Offers what a model has; `voice` is the session's. */
  showModel(model, voice) {
    this.#model = model;
    at("voice").replaceChildren(...model.voices.map((name) => new Option(name, name)));
    if (model.reads_aloud) at("voice").append(new Option("none by name", ""));
    // Without a voice a model that reads aloud may choose another one for each text.
    const first = model.reads_aloud ? (model.voices[0] ?? "") : voice;
    const clones = Object.values(this.#options).some((value) => typeof value === "object");
    const kept = model.voices.includes(this.keptVoice) ? this.keptVoice : first;
    const wanted = clones ? "" : kept;
    at("voice").value = wanted;
    if (wanted !== voice) this.#apply(() => ({ audio: { output: { voice: wanted } } }));
    const hide = (name, hidden) => {
      for (const each of document.querySelectorAll(`.${name}`)) each.hidden = hidden;
    };
    hide("conversing", model.reads_aloud);
    hide("hearing", !model.input_kinds.includes("audio"));
    hide("calling", !model.input_kinds.includes("tools") || model.reads_aloud);
    this.#showTurns();
    for (const option of at("output").options) {
      const draws = option.value !== "image" || model.outputs.includes("image");
      if (option.value === "image") option.hidden = option.disabled = !draws;
      if (!draws && option.selected) at("output").value = "text";
    }
    showOptions({
      place: at("options"),
      options: model.options,
      kept: this.#options,
      onChange: (name, value) => {
        if (value === null) delete this.#options[name];
        else this.#options[name] = value;
        const antiphon = { options: { [name]: value } };
        // A recording is the voice, and excludes one by name.
        if (value !== null && typeof value === "object") at("voice").value = "";
        const { value: voice } = at("voice");
        this.#apply(() => (voice ? { antiphon } : { antiphon, audio: { output: { voice } } }));
      },
      onFault: (reason) => this.showFault(reason),
      onReading: (reading) => (this.reading = reading),
    });
  }

  showFault(reason) {
    at("settings-fault").textContent = reason;
  }

  #sampling() {
    const temperature = at("temperature").valueAsNumber;
    return { antiphon: { sampling: { "": Number.isNaN(temperature) ? {} : { temperature } } } };
  }

  #showTurns() {
    const hears = this.#model?.input_kinds.includes("audio") ?? true;
    for (const group of document.querySelectorAll("[data-turns]")) {
      group.hidden = !hears || group.dataset.turns !== at("turn-detection").value;
    }
  }

  #apply(change) {
    let session;
    try {
      session = change();
    } catch (error) {
      this.showFault(`Tools: ${error.message}`);
      return;
    }
    this.showFault("");
    this.#keep();
    this.#sent += 1;
    this.send(session, `${EVENT_PREFIX}${this.#sent}`);
  }

  #keep() {
    const values = Object.fromEntries(KEPT.map((id) => [id, at(id).value]));
    this.keptVoice = values.voice || this.keptVoice;
    // A recording may be larger than what a browser keeps.
    const options = Object.entries(this.#options).filter(([, value]) => typeof value !== "object");
    keepSettings({ ...values, voice: this.keptVoice, options: Object.fromEntries(options) });
  }
}
