// A function that the model calls: the user gives its result.

/** Shows the call in a turn; `onResult(output)` is called once. */
export function showCall(turn, { name, arguments: given }, onResult) {
  const form = document.createElement("form");
  form.className = "call row";
  const call = document.createElement("code");
  call.textContent = `${name}(${given})`;
  const result = document.createElement("input");
  result.maxLength = 4000;
  result.required = true;
  result.placeholder = '{"ok": true}';
  result.setAttribute("aria-label", `Result of ${name}`);
  const button = document.createElement("button");
  button.textContent = "Return";
  form.append(call, result, button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    call.append(` = ${result.value}`);
    result.remove();
    button.remove();
    onResult(result.value);
  });
  turn.element.append(form);
}
