// The session ended while a page stands open. The page stays, with what was typed in it, and sends nothing until one is
// logged in again, in another tab; then it learns what its forms need, and goes on. Fetched by redrive.js when it is so.
"use strict";
(() => {
  const lateness = document.getElementById("lateness");
  let login = ""; // where one logs in; "" while one is logged in
  let say = null;
  let said = null;

  const tell = (words) => {
    said?.remove();
    said = say(words);
    const way = document.createElement("a");
    way.href = login;
    way.target = "_blank";
    way.textContent = "Log in";
    said.querySelector("button").before(way);
  };
  const LOST = "You are logged out. Nothing was changed. Log in in another tab, then try again. This page keeps what you typed.";

  document.addEventListener("redrive:logged-out", ({ detail }) => {
    const isNew = !login;
    say = detail.say;
    login = detail.xhr.getResponseHeader("Redrive-Login");
    if (isNew || detail.isAct) tell(LOST);
    if (lateness) lateness.textContent = "You are logged out";
  });

  // The login sends on whoever is logged in. Each login has a token of its own for the forms.
  const comeBack = async () => {
    const answer = await fetch(login).catch(() => null);
    if (!answer?.redirected) return false;
    const held = new DOMParser().parseFromString(await answer.text(), "text/html").body.getAttribute("hx-headers");
    if (!held || !login) return !login;
    document.body.setAttribute("hx-headers", held);
    for (const field of document.querySelectorAll("[name=csrfmiddlewaretoken]")) field.value = JSON.parse(held)["X-CSRFToken"];
    login = "";
    said?.remove();
    said = say("You are logged in again. What you typed is still here.", "success");
    if (lateness) lateness.textContent = "";
    return true;
  };
  const look = () => { if (login && !document.hidden) comeBack(); };
  document.addEventListener("visibilitychange", look);
  addEventListener("focus", look);
  document.addEventListener("htmx:afterOnLoad", ({ detail: { xhr } }) => { if (xhr.status < 400) look(); });

  // A form that loads a page would lead away from what is typed: it waits too.
  document.addEventListener("submit", (event) => {
    const { target: form, submitter } = event;
    if (!login || form.method !== "post" || /\/log(in|out)\/$/.test(form.action)) return;
    event.preventDefault();
    event.stopPropagation();
    comeBack().then((isBack) => { if (isBack) form.requestSubmit(submitter); else tell(LOST); });
  }, true);
})();
