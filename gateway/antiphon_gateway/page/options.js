// Fields for the options of a model, as `GET v1/models` describes them: of a model that reads aloud,
// the language, how to speak and whose voice to clone.

import { RATE_HZ, toBase64 } from "./sound.js";
import { readRecording, wavFile } from "./wav.js";

const FIRST = ["language", "instruction", "reference_audio", "reference_text"];
const TITLES = { reference_audio: "Voice to clone", reference_text: "What the recording says" };

const title = (name) => TITLES[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");

async function fileAsWav(file, mostS) {
  const samples = await readRecording(await file.arrayBuffer());
  const seconds = samples.length / RATE_HZ;
  if (mostS && seconds > mostS) {
    throw new Error(`The recording is ${seconds.toFixed(1)} s long. The maximum is ${mostS} s.`);
  }
  const bytes = new Uint8Array(await wavFile([samples]).arrayBuffer());
  return { data: toBase64(bytes), format: "wav" };
}

function field(option) {
  if (option.choices) {
    const choice = document.createElement("select");
    choice.append(new Option("the model's choice", ""), ...option.choices.map((each) => new Option(each, each)));
    return choice;
  }
  const input = document.createElement("input");
  if (option.kind === "number") {
    Object.assign(input, { type: "number", step: "any", min: option.least ?? "", max: option.most ?? "" });
  } else if (option.kind === "audio") {
    Object.assign(input, { type: "file", accept: "audio/*" });
  } else {
    Object.assign(input, { type: "text", maxLength: 4000 });
  }
  return input;
}

/**
 * Shows the options in `place`. Calls `onChange(name, value)` with what the user gives, null if it is
 * taken back, and `onFault(message)` if a recording cannot be used. `kept` are values of an earlier
 * load; recordings are not among them. `onReading(promise)` is called with what ends once a value is
 * read.
 */
export function showOptions({ place, options, kept, onChange, onFault, onReading }) {
  const rank = ({ name }) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  const rest = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "More options";
  rest.append(summary);
  place.replaceChildren();
  for (const option of options.toSorted((one, other) => rank(one) - rank(other))) {
    const control = field(option);
    control.id = `option-${option.name}`;
    control.title = option.description;
    const label = document.createElement("label");
    label.htmlFor = control.id;
    label.textContent = title(option.name);
    if (option.kind !== "audio" && kept[option.name] !== undefined) control.value = kept[option.name];
    const change = async () => {
      try {
        if (option.kind === "audio") {
          const file = control.files[0];
          onChange(option.name, file ? await fileAsWav(file, option.max_s) : null);
        } else if (control.value === "") {
          onChange(option.name, null);
        } else {
          onChange(option.name, option.kind === "number" ? control.valueAsNumber : control.value);
        }
      } catch (error) {
        control.value = "";
        onFault(`${title(option.name)}: ${error.message}`);
      }
    };
    control.addEventListener("change", () => onReading(change()));
    (rank(option) < FIRST.length ? place : rest).append(label, control);
  }
  if (rest.childElementCount > 1) place.append(rest);
}
