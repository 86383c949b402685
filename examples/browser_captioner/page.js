// The page: a photograph in, a caption out.

import { loadCaptioner } from "./captioner.js";

const [status, photo, caption, choice, place] = ["status", "photo", "caption", "file", "drop"].map((id) =>
  document.getElementById(id),
);
let captioner;

async function show(blob) {
  URL.revokeObjectURL(photo.src);
  photo.src = URL.createObjectURL(blob);
  photo.hidden = false;
  caption.textContent = "";
  status.textContent = "Captioning ...";
  await new Promise((resolve) => setTimeout(resolve, 20)); // the browser draws first
  const start = performance.now();
  try {
    caption.textContent = await captioner.caption(blob);
    photo.alt = caption.textContent;
    status.textContent = `${((performance.now() - start) / 1000).toFixed(1)} seconds, on this machine.`;
  } catch (error) {
    status.textContent = error.message;
  }
}

async function start() {
  try {
    captioner = await loadCaptioner("captioner");
    globalThis.captioner = captioner;
    choice.disabled = false;
    status.textContent = "Choose a photograph.";
  } catch (error) {
    status.textContent = error.message;
  }
  document.body.dataset.state = captioner ? "ready" : "failed";
}

choice.addEventListener("change", () => choice.files.length && show(choice.files[0]));
place.addEventListener("dragover", (event) => event.preventDefault());
place.addEventListener("drop", (event) => {
  event.preventDefault();
  if (captioner && event.dataTransfer.files.length) show(event.dataTransfer.files[0]);
});
start();
