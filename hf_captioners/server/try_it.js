"use strict";

const byId = (name) => document.getElementById(name);
let image = null;

function show(name, text) {
  byId(name).textContent = text;
  byId(name).hidden = !text;
}

function addParameter(parameter) {
  const { name, description, schema } = parameter;
  const label = document.createElement("label");
  const field = document.createElement(schema.type === "boolean" ? "select" : "input");
  field.name = name;
  if (schema.type === "boolean") {
    for (const value of ["", "true", "false"]) field.add(new Option(value || "default", value));
  } else {
    field.placeholder = "default";
    field.type = schema.type === "string" ? "text" : "number";
    if (schema.type !== "string") Object.assign(field, { min: schema.minimum, max: schema.maximum });
    field.step = schema.type === "integer" ? 1 : "any";
    if (schema.maxLength) field.maxLength = schema.maxLength;
  }
  const text = document.createElement("small");
  text.textContent = description;
  label.append(name, field, text);
  byId("parameters").append(label);
}

function query() {
  const values = new URLSearchParams();
  for (const field of byId("parameters").querySelectorAll("input, select")) {
    if (field.value !== "") values.append(field.name, field.value);
  }
  return values.size ? `?${values}` : "";
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function showCommand() {
  const name = image ? image.name : "photo.jpg";
  const kind = (image && image.type) || "image/jpeg";
  const address = new URL(`caption${query()}`, document.baseURI);
  byId("command").textContent =
    `curl -H 'Content-Type: ${kind}' --data-binary ${quoted(`@${name}`)} ${quoted(String(address))}`;
}

function choose(file) {
  if (!file) return;
  image = file;
  const preview = new Image();
  preview.id = "preview";
  preview.src = URL.createObjectURL(file);
  preview.alt = file.name;
  preview.onload = () => URL.revokeObjectURL(preview.src);
  preview.onerror = () => preview.remove();  // of a format that the browser does not read
  if (byId("preview")) byId("preview").remove();
  byId("drop").prepend(preview);
  byId("hint").textContent = file.name;
  byId("send").disabled = false;
  showCommand();
}

function showAnswer(answer, seconds) {
  const captions = [answer.caption].flat();
  show("caption", captions.join("\n"));
  const values = [`score ${[answer.score].flat().map((score) => score.toFixed(2)).join(", ")}`];
  const sure = [answer.confidence ?? null].flat().filter((one) => one !== null);
  if (sure.length) values.push(`confidence ${sure.map((one) => one.toFixed(2)).join(", ")}`);
  show("details", [...values, `${seconds.toFixed(2)} seconds`].join(" · "));
}

async function send(event) {
  event.preventDefault();
  byId("send").disabled = true;
  byId("send").textContent = "Captioning …";
  for (const name of ["caption", "details", "error"]) show(name, "");
  const begin = performance.now();
  try {
    const headers = { "Content-Type": image.type.startsWith("image/") ? image.type : "image/jpeg" };
    const response = await fetch(`caption${query()}`, { method: "POST", headers, body: image });
    const answer = await response.json();
    byId("json").textContent = JSON.stringify(answer, null, 2);
    if (response.ok) showAnswer(answer, (performance.now() - begin) / 1000);
    else show("error", answer.error);
  } catch (error) {
    show("error", `The server does not answer: ${error.message}`);
  }
  byId("send").disabled = false;
  byId("send").textContent = "Caption";
}

async function start() {
  const description = await (await fetch("openapi.json")).json();
  byId("captioner").textContent = description.info.description;
  description.paths["/caption"].post.parameters.forEach(addParameter);
  showCommand();
}

byId("file").addEventListener("change", () => choose(byId("file").files[0]));
byId("form").addEventListener("submit", send);
byId("form").addEventListener("input", showCommand);
for (const kind of ["dragover", "dragleave", "drop"]) {
  byId("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") choose(event.dataTransfer.files[0]);
  });
}
start();
