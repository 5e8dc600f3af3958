// What survives a reload of the page: the turns and the settings, in this tab and until it is closed.

const TURNS = "antiphon.turns";
const SETTINGS = "antiphon.settings";
const HAS_WORDS = /\p{L}|\p{N}/u;

function read(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise; // no storage, or not this page's
  }
}

function write(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
  } catch {
    // A browser may refuse storage, or its space is used up; then a reload begins with less.
  }
}

export const keptTurns = () => read(TURNS, []);
export const keepTurns = (records) => write(TURNS, records);
export const keptSettings = () => read(SETTINGS, {});
export const keepSettings = (values) => write(SETTINGS, values);

/** The messages of earlier turns, as items of a new conversation. Failed turns are not among them. */
export function itemsOf(records) {
  return records
    .filter(({ fault, text, unheard }) => !fault && !unheard && HAS_WORDS.test(text))
    .map(({ who, text }) => {
      const [role, type] = who === "You" ? ["user", "input_text"] : ["assistant", "output_text"];
      return { type: "message", role, content: [{ type, text }] };
    });
}
