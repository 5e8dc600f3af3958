// The panes next to the conversation. Only one is open at a time. On a phone, it covers the turns.

/** `openers` are the buttons that open and close a pane, each with `aria-controls`. */
export class Panes {
  #openers;

  constructor(openers) {
    this.#openers = openers;
    for (const opener of openers) {
      const pane = this.#paneOf(opener);
      opener.addEventListener("click", () => (pane.hidden ? this.open(pane) : this.close()));
      pane.querySelector(".close").addEventListener("click", () => this.close());
      pane.addEventListener("keydown", (event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        this.close();
      });
    }
  }

  open(pane, focused = pane.querySelector(".close")) {
    this.#show(pane);
    focused?.focus();
  }

  /** The button that opened the pane has the focus then. */
  close() {
    const opener = this.#openers.find((each) => !this.#paneOf(each).hidden);
    this.#show(null);
    opener?.focus();
  }

  /** Without taking the focus. */
  show(pane) {
    this.#show(pane);
  }

  #show(shown) {
    for (const opener of this.#openers) {
      const pane = this.#paneOf(opener);
      pane.hidden = pane !== shown;
      opener.setAttribute("aria-expanded", String(pane === shown));
    }
    document.body.classList.toggle("with-pane", shown !== null);
  }

  #paneOf(opener) {
    return document.getElementById(opener.getAttribute("aria-controls"));
  }
}
