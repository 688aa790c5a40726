// Feedback on acts and refreshes: buttons of running acts, errors, lost connection, ended session. Loaded by redrive.js after
// the page is displayed. Pages work without this script.
"use strict";
(() => {
  const SHOWN_AFTER = 100; // ms: no indicator for faster answers
  const LONG_AFTER = 2000;
  const TIMEOUT = 20000; // the same as htmx's
  const LATE_AFTER = 4000;
  const CHECK = "Check whether the change was applied before retrying.";
  const find = (selector, inside = document) => inside.querySelector(selector);
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
  const messages = find("#messages");
  const styles = document.createElement("link");
  styles.rel = "stylesheet";
  styles.href = messages.dataset.styles;
  document.head.append(styles);

  // ---------- messages ----------
  const element = (name, className, text = "") => {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const button = (text, press, className = "quiet") => {
    const made = element("button", className, text);
    made.type = "button";
    made.addEventListener("click", press);
    return made;
  };
  const say = (text, level = "error", ...more) => {
    const toast = element("div", `toast is-${level}`);
    toast.dataset.toast = "";
    toast.append(element("p", "", text), ...more, button("Dismiss", () => toast.remove()));
    messages.append(toast);
    return toast;
  };
  document.addEventListener("click", (event) => {
    event.target.closest?.("[data-dismiss]")?.closest("[data-toast]")?.remove();
  });
  // Plain messages disappear after ten readable seconds, unless they are hovered or focused. Errors stay until closed, messages
  // with an undo until the next act.
  setInterval(() => {
    if (document.hidden) return;
    for (const toast of all("[data-toast]:not(:hover, :focus-within, :has(form), .is-error, .is-warning, [data-under-way])")) {
      if (toast.dataset.toast++ > 8) toast.remove();
    }
  }, 1000);

  // ---------- running acts ----------
  const shown = new Map(); // by form
  const wordsOf = (pressed) => (pressed?.getAttribute?.("aria-label") || pressed?.textContent || "").trim().replace(/\s+/g, " ") || "Action";
  const release = (form) => document.dispatchEvent(new CustomEvent("redrive:release", { detail: form }));
  document.addEventListener("redrive:acting", ({ detail: { form, button: pressed, sender } }) => {
    const act = pressed?.matches?.("button, input") ? pressed : find("button:not([type=button])", form);
    const words = wordsOf(act);
    const one = { act, timers: [] };
    shown.set(form, one);
    const after = (ms, then) => one.timers.push(setTimeout(then, ms));
    after(SHOWN_AFTER, () => {
      act?.setAttribute("aria-busy", "true");
      act?.setAttribute("aria-disabled", "true");
    });
    const stop = () => {
      if (sender) window.htmx.trigger(sender, "htmx:abort");
      else window.stop();
      release(form);
      say(`Stopped waiting for “${words}”. ${CHECK}`, "warning");
    };
    after(LONG_AFTER, () => {
      const clock = element("span", "quiet-text");
      clock.ariaHidden = "true"; // announced once, not every second
      one.toast = say(`“${words}” is taking longer than usual.`, "info", clock, button("Stop waiting", stop, ""));
      one.toast.lastChild.remove();
      one.toast.dataset.underWay = "";
      const began = Date.now() - LONG_AFTER;
      const count = () => { clock.textContent = `${Math.round((Date.now() - began) / 1000)} of at most ${TIMEOUT / 1000} s`; };
      count();
      one.every = setInterval(count, 1000);
    });
    // A form without htmx: no event reports that its page did not load.
    if (!sender) after(TIMEOUT, () => { release(form); say(`No response within ${TIMEOUT / 1000} s. ${CHECK}`); });
    if (form.matches("[data-download]")) watchDownload(form, one, words);
  });
  document.addEventListener("redrive:acted", ({ detail: form }) => {
    const one = shown.get(form);
    if (!one) return;
    shown.delete(form);
    one.timers.forEach(clearTimeout);
    clearInterval(one.every);
    clearInterval(one.download);
    one.toast?.remove();
    one.act?.removeAttribute("aria-busy");
    one.act?.removeAttribute("aria-disabled");
  });

  // A download does not leave the page: its response sets a cookie with the number submitted with the form.
  let download = 0;
  document.addEventListener("formdata", ({ target, formData }) => {
    if (target.matches("[data-download]")) formData.set("download", download); // browsers may ask twice
  });
  const watchDownload = (form, one, words) => {
    download = Date.now();
    one.download = setInterval(() => {
      if (!document.cookie.includes(`redrive-download=${download}`)) return;
      document.cookie = "redrive-download=;path=/;max-age=0;samesite=lax";
      release(form);
      say(`“${words}” started. Your browser shows the progress.`, "success");
    }, 200);
  };

  // ---------- the connection ----------
  // One visible sentence, announced when it appears and not at each refresh. The next answer removes it.
  const banner = find("#lateness");
  const { zone, zoneName } = document.documentElement.dataset;
  const clock = (ms) => new Date(ms).toLocaleTimeString("sv", { timeZone: zone }).slice(0, 5);
  let answeredAt = Date.now();
  let askedAt = 0;
  let reason = "";
  const lose = (why, ...ways) => {
    if (!banner || reason === why) return;
    reason = why;
    const text = element("span", "");
    text.append(element("strong", "", `Not updated since ${clock(answeredAt)} ${zoneName}.`), ` ${why}`);
    banner.replaceChildren(text, ...ways);
  };
  const regain = () => {
    answeredAt = Date.now();
    if (!reason) return;
    reason = "";
    banner.replaceChildren();
  };
  // Reloads only if the page is reachable; otherwise the browser's error page would replace it.
  const reload = button("Reload", () => {
    fetch(location.href, { method: "HEAD" }).then((answer) => { if (answer.ok) location.reload(); }, () => {});
  }, "");
  const away = () => lose(navigator.onLine ? "The desk does not answer. Trying again." : "This device is offline. Trying again.", reload);
  const isLivePart = (event) => event.detail.elt?.matches?.("[data-live]");
  document.addEventListener("htmx:configRequest", (event) => { if (isLivePart(event)) askedAt = Date.now(); });
  setInterval(() => {
    if (!document.hidden && askedAt && Date.now() - askedAt > LATE_AFTER && find("[data-live].htmx-request")) away();
  }, 1000);
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!isLivePart(event)) return;
    const { status } = event.detail.xhr;
    if (status === 200 || status === 304) regain();
    else if (!status) away();
  });
  document.addEventListener("redrive:away", ({ detail: isAct }) => {
    away();
    if (isAct) say("The desk is unreachable. Nothing was sent.");
  });

  document.addEventListener("htmx:responseError", (event) => {
    const { xhr } = event.detail;
    if (xhr.status === 401) { logOut(xhr, !isLivePart(event)); return; }
    const isSentence = (xhr.getResponseHeader("Content-Type") || "").startsWith("text/plain");
    if (isLivePart(event)) lose(isSentence ? xhr.responseText : `The desk answered with an error (HTTP ${xhr.status}).`, reload);
    else say(isSentence ? xhr.responseText : `The request failed (HTTP ${xhr.status}). ${CHECK}`);
  });
  document.addEventListener("htmx:sendError", (event) => {
    if (!isLivePart(event)) say(`The desk is unreachable. ${CHECK}`);
  });
  document.addEventListener("htmx:timeout", (event) => {
    if (!isLivePart(event)) say(`No response within ${TIMEOUT / 1000} s. ${CHECK}`);
  });

  // ---------- the session ----------
  // The page keeps its typed text and sends nothing until the user has logged in again in another tab; it then updates the
  // tokens of its forms and continues.
  let login = ""; // URL of the login; "" while logged in
  let told = null;
  const LOST = "You are logged out. Nothing was changed. Log in in another tab, then try again. This page keeps what you typed.";
  const wayIn = () => {
    const way = element("a", "", "Log in");
    way.href = login;
    way.target = "_blank";
    return way;
  };
  const tell = () => {
    told?.remove();
    told = say(LOST, "error", wayIn());
  };
  const logOut = (xhr, isAct) => {
    login = xhr.getResponseHeader("Redrive-Login");
    if (isAct) tell();
    if (find("[data-live]")) lose("You are logged out.", wayIn());
  };
  // The login page redirects a logged-in user. Each login has a new CSRF token for the forms.
  const comeBack = async () => {
    const answer = await fetch(login).catch(() => null);
    if (!answer?.redirected) return false;
    const headers = new DOMParser().parseFromString(await answer.text(), "text/html").body.getAttribute("hx-headers");
    if (!headers || !login) return !login;
    document.body.setAttribute("hx-headers", headers);
    for (const field of all("[name=csrfmiddlewaretoken]")) field.value = JSON.parse(headers)["X-CSRFToken"];
    login = "";
    told?.remove();
    say("You are logged in again. What you typed is still here.", "success");
    regain();
    return true;
  };
  const check = () => { if (login && !document.hidden) comeBack(); };
  document.addEventListener("visibilitychange", check);
  addEventListener("focus", check);
  document.addEventListener("htmx:afterOnLoad", ({ detail: { xhr } }) => { if (xhr.status < 400) check(); });
  // A form that loads a page would discard typed text, so it waits too.
  document.addEventListener("submit", (event) => {
    const { target: form, submitter } = event;
    if (!login || form.method !== "post" || /\/log(in|out)\/$/.test(form.action)) return;
    event.preventDefault();
    event.stopPropagation();
    comeBack().then((isBack) => { if (isBack) form.requestSubmit(submitter); else tell(); });
  }, true);
})();
