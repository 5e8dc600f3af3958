// The conversation at /v1/realtime, over one WebSocket after the other: what the page asks for, and
// what comes of it.

import { Position } from "./position.js";
import { refusal } from "./refusal.js";

const PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4000;
const MOST_ATTEMPTS = 150; // about 10 minutes: a gateway that restarts on a busy host takes one
// Of connections that the gateway has ended for a reason that will be the same next time.
const FINAL = new Set([1000, 1003, 1007, 1008, 1009]);

/**
 * `note(direction, event)` is called with every event, "sent" or "received".
 * `on` has a handler for each server event that the page shows, by its type. `waits(reason)` is called
 * when the gateway cannot open a conversation yet; the conversation tries again. When an open
 * conversation loses its gateway, `lost()` is called, and `resumed()` when a gateway has continued it.
 * `closed(reason, needsKey)` is called at the end.
 */
export class Conversation {
  #key;
  #on;
  #position = new Position();
  #socket = null;
  #begun = false; // by the gateway that has it now
  #attempts = 0;
  #waiting = 0;

  constructor({ key, on, note, waits, lost, resumed, closed }) {
    this.#key = key;
    this.#on = on;
    Object.assign(this, { note, waits, lost, resumed, closed });
    this.#connect(false);
  }

  get open() {
    return this.#begun;
  }

  close() {
    clearTimeout(this.#waiting);
    this.#begun = false;
    this.#socket.onclose = null;
    this.#socket.close();
  }

  /** Begins another conversation in a while, as after a refusal. */
  tryAgain() {
    this.close();
    this.#position = new Position();
    this.#waiting = setTimeout(() => this.#connect(false), LONGEST_PAUSE_MS / 4);
  }

  /** What is sent while no gateway is there goes to the one that goes on. */
  send(type, fields = {}) {
    const command = { type, ...fields };
    this.#position.sent(command);
    if (this.#begun) this.#transmit(command);
  }

  /** An error of the change has its `event_id`. */
  update(session, event_id) {
    this.send("session.update", { event_id, session: { type: "realtime", ...session } });
  }

  add(item) {
    this.send("conversation.item.create", { item });
  }

  say(text) {
    this.add({ type: "message", role: "user", content: [{ type: "input_text", text }] });
    this.send("response.create");
  }

  #transmit(command) {
    this.note("sent", command);
    this.#socket.send(JSON.stringify(command));
  }

  #connect(resumes) {
    const url = new URL("v1/realtime", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("resumable", "true");
    if (resumes) url.searchParams.set("resumed", "true");
    const protocols = this.#key ? ["realtime", `openai-insecure-api-key.${this.#key}`] : [];
    const socket = new WebSocket(url, protocols);
    if (resumes) socket.onopen = () => this.#transmit(this.#position.resumption);
    socket.onmessage = ({ data }) => this.#take(JSON.parse(data), resumes);
    socket.onclose = (ended) => this.#ended(ended);
    this.#socket = socket;
  }

  #take(event, resumes) {
    this.note("received", event);
    const begins = !this.#begun && event.type === "session.created";
    if (begins) {
      this.#begun = true;
      this.#attempts = 0;
    }
    if (begins && resumes) {
      for (const command of this.#position.beginAgain()) this.#transmit(command);
      this.resumed();
      return;
    }
    if (this.#position.isRepeated(event)) return;
    this.#position.note(event);
    this.#on[event.type]?.(event);
  }

  async #ended({ code, reason }) {
    const wasOpen = this.#begun;
    this.#begun = false;
    const { resumable } = this.#position;
    if (wasOpen || reason) {
      if (!resumable || FINAL.has(code)) {
        this.closed(`Not connected: ${reason || `connection closed (${code})`}.`, false);
        return;
      }
      this.lost();
    } else {
      const socket = this.#socket;
      const refused = await refusal(this.#key);
      // The page may have closed this conversation while it waited for the reason.
      if (socket.onclose === null) return;
      const retries = refused.retry || (refused.ready && resumable);
      if (!retries || (resumable && this.#attempts >= MOST_ATTEMPTS)) {
        this.closed(refused.reason, refused.needsKey);
        return;
      }
      if (!resumable) this.waits(refused.reason);
    }
    const pauseMs = Math.min(LONGEST_PAUSE_MS, PAUSE_MS * 2 ** this.#attempts);
    this.#attempts += 1;
    this.#waiting = setTimeout(() => this.#connect(resumable), pauseMs);
  }
}
