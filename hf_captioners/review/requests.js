// Requests to the server. Texts of captions and names are set as text only, never as HTML.
"use strict";
const KEEPALIVE_BYTES = 60000; // browsers send at most 64 KiB after a page is left

export async function asked(path, body) {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const answer = await fetch(path, text === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: text,
    keepalive: new Blob([text]).size < KEEPALIVE_BYTES,
  });
  const content = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  return { status: answer.status, body: content };
}
