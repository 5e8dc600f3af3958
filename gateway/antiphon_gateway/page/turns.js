// The turns that the page shows: the user's, and the model's with their latency, sound and images.

import { timeline } from "./timeline.js";
import { wavFile } from "./wav.js";

const MOST_TURNS = 200;
const MOST_SOUND_BYTES = 64 << 20; // of all turns; the oldest are forgotten
const END_PX = 48; // a view that ends so close to the last turn follows it

const milliseconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/**
 * One turn in the list. Its `record` has what survives a reload: `who`, `text`, `fault`, and of an
 * answer `latencyMs`, `first` (what came first: "sound" or "word") and `stages` (of the timeline).
 */
class Turn {
  #words;
  #facts = null;
  #pieces = []; // of sound, as 16-bit samples
  #url = "";

  constructor(record, onReplay) {
    this.record = record;
    this.onReplay = onReplay;
    this.element = element("li", record.who === "You" ? "user" : "answer");
    this.#words = element("p", "words", record.text);
    this.element.append(element("p", "who", record.who), this.#words);
    this.element.classList.toggle("fault", Boolean(record.fault));
    if (record.latencyMs !== undefined) this.#showLatency();
    if (record.stages) this.#showTimeline();
  }

  get soundBytes() {
    return this.#pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
  }

  set text(text) {
    this.record.text = text;
    this.#words.textContent = text;
  }

  append(text) {
    this.record.text += text;
    this.#words.append(text);
  }

  fail(reason) {
    this.record.fault = true;
    this.element.classList.add("fault");
    this.append(reason);
  }

  /** How long the user waited for the first sound or word. Later calls change nothing. */
  heardAfter(latencyMs, first) {
    if (this.record.latencyMs !== undefined) return;
    Object.assign(this.record, { latencyMs, first });
    this.#showLatency();
  }

  addTimeline(stages) {
    this.record.stages = stages;
    this.#showTimeline();
  }

  addSound(pcm16) {
    this.#pieces.push(pcm16);
  }

  /** Offers the sound, once all of it is there. */
  offerSound() {
    if (!this.#pieces.length || this.#url) return;
    this.#url = URL.createObjectURL(wavFile(this.#pieces));
    const replay = element("button", "sound", "Replay");
    replay.type = "button";
    replay.addEventListener("click", () => this.onReplay(this.#pieces));
    const download = element("a", "sound button", "Download");
    download.href = this.#url;
    download.download = "answer.wav";
    this.#row().prepend(replay, download);
  }

  forgetSound() {
    URL.revokeObjectURL(this.#url);
    this.#pieces = [];
    this.#url = "";
    for (const control of this.element.querySelectorAll(".sound")) control.remove();
  }

  #row() {
    if (!this.#facts) {
      this.#facts = element("div", "facts");
      this.element.append(this.#facts);
    }
    return this.#facts;
  }

  #showLatency() {
    const { latencyMs, first } = this.record;
    const latency = element("span", "latency", `First ${first} after ${milliseconds(latencyMs)}`);
    latency.title = `Time from the end of your turn until the first ${first} reached this page`;
    this.#row().append(latency);
  }

  #showTimeline() {
    const folded = document.createElement("details");
    folded.append(element("summary", "", "Stages"), timeline(this.record.stages));
    this.element.append(folded);
  }
}

/** The list of turns in a view that scrolls, whose end stays in view unless the reader scrolls away. */
export class Turns {
  #list;
  #view;
  #atEnd = true;
  #shown = [];

  constructor(list, view, onReplay) {
    this.#list = list;
    this.#view = view;
    this.onReplay = onReplay;
    let top = 0;
    view.addEventListener("scroll", () => {
      // Growth of the content moves its end away; only the reader moves the view up.
      const wasMovedUp = view.scrollTop < top;
      top = view.scrollTop;
      const isNear = view.scrollHeight - top - view.clientHeight < END_PX;
      this.#atEnd = isNear || (this.#atEnd && !wasMovedUp);
    });
    const sizes = new ResizeObserver(() => this.#follow());
    sizes.observe(view);
    sizes.observe(list);
  }

  get records() {
    return this.#shown.map(({ record }) => record);
  }

  add(who, text = "") {
    return this.restore({ who, text });
  }

  restore(record) {
    const turn = new Turn(record, this.onReplay);
    this.#list.append(turn.element);
    this.#shown.push(turn);
    while (this.#shown.length > MOST_TURNS) {
      const oldest = this.#shown.shift();
      oldest.forgetSound();
      oldest.element.remove();
    }
    return turn;
  }

  /** The oldest sounds make room for new ones. */
  boundSound() {
    let bytes = this.#shown.reduce((sum, turn) => sum + turn.soundBytes, 0);
    for (const turn of this.#shown) {
      if (bytes <= MOST_SOUND_BYTES) return;
      bytes -= turn.soundBytes;
      turn.forgetSound();
    }
  }

  clear() {
    for (const turn of this.#shown) turn.forgetSound();
    this.#shown = [];
    this.#list.replaceChildren();
  }

  scrollToEnd() {
    this.#atEnd = true;
    this.#follow();
  }

  #follow() {
    if (this.#atEnd && this.#shown.length) this.#view.scrollTop = this.#view.scrollHeight;
  }
}
