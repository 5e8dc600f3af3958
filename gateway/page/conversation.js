// The WebSocket at /v1/realtime: what the page asks for, and what comes of it.

/**
 * One connection. `on` has a handler for each server event that the page shows, by its type;
 * `closed(reason)` is called at the end.
 */
export class Conversation {
  constructor({ key, on, closed }) {
    const url = new URL("v1/realtime", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    const protocols = key ? ["realtime", `openai-insecure-api-key.${key}`] : [];
    this.socket = new WebSocket(url, protocols);
    this.socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      on[event.type]?.(event);
    };
    this.socket.onclose = ({ code, reason }) => closed(reason || `connection closed (${code})`);
  }

  get open() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  close() {
    this.socket.onclose = null;
    this.socket.close();
  }

  send(type, fields = {}) {
    if (this.open) this.socket.send(JSON.stringify({ type, ...fields }));
  }

  update(session) {
    this.send("session.update", { session: { type: "realtime", ...session } });
  }

  say(text) {
    const content = [{ type: "input_text", text }];
    this.send("conversation.item.create", { item: { type: "message", role: "user", content } });
    this.send("response.create");
  }
}
