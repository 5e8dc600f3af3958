// When each stage worked on an answer, as a table with bars.

const milliseconds = (seconds) => `${Math.round(seconds * 1000)} ms`;

/** The table of the stages' times, in seconds since each was given the turn. */
export function timeline(stages) {
  const end = Math.max(...stages.map((stage) => stage.last_output_s), 0.001);
  const table = document.createElement("table");
  table.className = "timeline";
  table.createCaption().textContent = "Time spent in each stage";
  const head = table.createTHead().insertRow();
  for (const title of ["Stage", "From first to last output", "First", "Last", "Busy"]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = title;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const stage of stages) {
    const row = body.insertRow();
    const name = document.createElement("th");
    name.scope = "row";
    name.textContent = stage.role;
    row.append(name);
    const span = row.insertCell();
    span.className = "span";
    span.append(track(stage, end));
    for (const value of [stage.first_output_s, stage.last_output_s, stage.busy_s]) {
      const cell = row.insertCell();
      cell.className = "number";
      cell.textContent = milliseconds(value);
    }
  }
  return table;
}

function track(stage, end) {
  const whole = document.createElement("div");
  whole.className = "track";
  const bar = document.createElement("div");
  bar.className = "bar";
  bar.style.insetInlineStart = `${(stage.first_output_s / end) * 100}%`;
  bar.style.width = `${((stage.last_output_s - stage.first_output_s) / end) * 100}%`;
  whole.append(bar);
  return whole;
}
