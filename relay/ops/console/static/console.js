// What pages of the console do by themselves: colours, the pause of the refresh, copying, selecting. All works without.
(() => {
  "use strict";
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  root.classList.add("js");

  // --- colours: the server reads the cookie, so that no page flashes ---
  const themes = ["auto", "light", "dark"];
  const theme = byId("theme");
  const showTheme = (name) => {
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
    theme.querySelector(".text").textContent = name;
  };
  if (theme) {
    showTheme(root.dataset.theme || "auto");
    theme.addEventListener("click", () => {
      const name = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
      document.cookie = `theme=${name}; path=/; max-age=31536000; samesite=strict`;
      showTheme(name);
    });
  }

  // --- refresh: every few seconds, unless paused or hidden, or while somebody writes or drags ---
  const EVERY = 5000;
  const pause = byId("pause");
  const updated = byId("updated");
  const band = byId("band");
  const live = () => document.querySelector("#live[hx-trigger]");
  const paused = () => localStorage.getItem("paused") === "yes";
  const chosen = (name) => document.querySelectorAll(`tbody input[name=${name || "ids"}]:checked`);
  const writing = () => document.activeElement?.matches("#live :is(select, textarea, input:not([type=checkbox]))");
  let pressed = false;
  addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => { pressed = false; });
  const busy = () => pressed || writing();
  let saying = 0;
  // What is said once goes after a while.
  const say = (text, wrong) => {
    if (!updated) return;
    clearTimeout(saying);
    updated.textContent = text;
    updated.classList.toggle("wrong", Boolean(wrong));
    if (text) saying = setTimeout(() => say(""), 4000);
  };

  // --- the age of what is shown, by the clock of the server ---
  const ahead = Date.parse(root.dataset.now) - Date.now() || 0;
  const now = () => Date.now() + ahead;
  const words = (seconds) => {
    const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([it]) => seconds >= it) || [1, "s"];
    return `${Math.round(seconds / size)} ${unit}`;
  };
  const tell = () => {
    for (const it of document.querySelectorAll("time[data-ago]")) {
      const seconds = Math.round((now() - Date.parse(it.dateTime)) / 1000);
      const text = seconds === 0 ? "now" : seconds > 0 ? `${words(seconds)} ago` : `in ${words(-seconds)}`;
      if (it.textContent !== text) it.textContent = text;
    }
  };
  let why = "";
  let failed = 0;
  const showLive = () => {
    const shown = live();
    const at = Date.parse(shown?.dataset.at);
    const age = at ? Math.max(0, Math.round((now() - at) / 1000)) : 0;
    const every = (Number(shown?.dataset.every) || EVERY / 1000) * 1000;
    const old = Boolean(at) && (failed > 0 || (!paused() && age * 1000 > every + 2 * EVERY));
    if (pause && shown) {
      pause.setAttribute("aria-pressed", String(paused()));
      pause.classList.toggle("stopped", old && !paused());
      const text = paused() ? `Paused: ${words(age)} old` : old ? "Not live" : "Live";
      const label = pause.querySelector(".text");
      if (label.textContent !== text) label.textContent = text;
    }
    if (!band || !shown) return;
    band.hidden = !old;
    if (!old) { band.textContent = ""; return; }
    const clock = new Date(at).toISOString().slice(11, 19);
    band.textContent = `Data of ${clock} UTC, ${words(age)} old. ${why || "No answer yet; trying again."}`;
  };
  pause?.addEventListener("click", () => {
    localStorage.setItem("paused", paused() ? "no" : "yes");
    showLive();
  });
  if (pause && !live()) pause.hidden = true;
  let beats = 0;
  const beat = () => {
    if (!live() || paused() || document.hidden || busy()) return;
    beats += 1;
    document.body.dispatchEvent(new CustomEvent("refresh"));
    if (beats % 6 === 0) document.body.dispatchEvent(new CustomEvent("slow"));
  };
  setInterval(beat, EVERY);
  document.addEventListener("visibilitychange", beat);
  setInterval(() => { tell(); showLive(); }, 1000);
  const ours = (event) => event.target === live() || event.detail?.ctx?.sourceElement === live();
  const answered = (event) => event.detail?.ctx?.response?.status ?? 0;
  // What the page of an error says.
  const reason = (event) => {
    const page = new DOMParser().parseFromString(event.detail?.ctx?.text ?? "", "text/html");
    const said = page.querySelector(".trouble p")?.textContent ?? "";
    return `${said ? `${said}. ` : ""}The last refresh failed (${answered(event) || "no answer"}); trying again.`;
  };
  const miss = (text) => { failed += 1; why = text; showLive(); };
  document.body.addEventListener("htmx:response:error", (event) => { if (ours(event)) miss(reason(event)); });
  document.body.addEventListener("htmx:error", (event) => { if (ours(event)) miss("No answer; trying again."); });

  // Ticked rows stay ticked by their ids, whatever comes above them. What has gone is said.
  let ticked = [];
  let were = [];
  let held = null;
  document.body.addEventListener("htmx:before:swap", (event) => {
    if (event.target.id !== "live") return;
    if (busy()) { event.preventDefault(); return; }
    ticked = [...chosen()].map((it) => it.value);
    were = [...document.querySelectorAll("tbody input[name=ids]")].map((it) => it.value);
    const focused = document.activeElement?.closest("#live") ? document.activeElement : null;
    held = focused && { row: focused.closest("[id^=row-]")?.id, label: focused.getAttribute("aria-label"), was: focused };
  });
  // Whether newer rows have pushed a row to the next page: then it stood below what is now the last row.
  const pushedOff = (id, here) => {
    if (!document.querySelector(".pager [rel=next]")) return false;
    const end = were.indexOf(here.at(-1));
    return end < 0 ? !here.some((it) => were.includes(it)) : were.indexOf(id) > end;
  };
  document.body.addEventListener("htmx:after:swap", (event) => {
    if (answered(event) >= 400) return;
    if (ours(event) || event.target.id === "live") { failed = 0; why = ""; }
    const boxes = new Map([...document.querySelectorAll("tbody input[name=ids]")].map((it) => [it.value, it]));
    for (const [id, box] of boxes) box.checked = ticked.includes(id);
    const gone = ticked.filter((id) => !boxes.has(id) && !pushedOff(id, [...boxes.keys()]));
    if (gone.length) {
      say(`${gone.length} of ${ticked.length} selected rows ${gone.length > 1 ? "are" : "is"} not on this page any more.`, true);
      document.body.dispatchEvent(new CustomEvent("gone", { detail: gone }));
    }
    if (held?.row && !held.was.isConnected) {
      [...(byId(held.row)?.querySelectorAll("[aria-label]") ?? [])]
        .find((it) => it.getAttribute("aria-label") === held.label)?.focus();
    }
    held = null;
    tell();
    showLive();
    count();
  });

  // --- the page of an error comes back by itself ---
  if (document.querySelector("[data-retry]")) {
    setInterval(async () => {
      if (document.hidden) return;
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
      if (answer && answer.status < 500) location.reload();
    }, EVERY);
  }

  // --- the strip of pages of a narrow screen begins where we are ---
  const strip = document.querySelector("nav");
  const here = strip?.querySelector("[aria-current]");
  if (here) strip.scrollLeft = here.offsetLeft - strip.clientWidth / 2 + here.offsetWidth / 2;

  // --- selecting ---
  const count = () => {
    const many = chosen().length;
    const all = document.querySelectorAll("tbody input[name=ids]").length;
    for (const button of document.querySelectorAll("[data-selected]")) button.disabled = many === 0;
    const label = byId("selected");
    if (label) label.textContent = many ? `${many} selected:` : "Selected rows:";
    for (const box of document.querySelectorAll("[data-all]")) {
      box.checked = many > 0 && many === all;
      box.indeterminate = many > 0 && many < all;
    }
  };
  let last = null;
  document.addEventListener("click", (event) => {
    const box = event.target.closest?.("tbody input[name=ids]");
    if (!box) return;
    const boxes = [...document.querySelectorAll("tbody input[name=ids]")];
    if (event.shiftKey && last && boxes.includes(last)) {
      const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
      for (const between of boxes.slice(from, to + 1)) between.checked = box.checked;
    }
    last = box;
    count();
  });
  document.addEventListener("change", (event) => {
    if (!event.target.matches?.("[data-all]")) return;
    for (const box of document.querySelectorAll("tbody input[name=ids]")) box.checked = event.target.checked;
    count();
  });
  count();
  tell();
  showLive();

  // --- an action is sent once, however often somebody presses while the answer is on its way ---
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
    for (const button of form.querySelectorAll("button")) button.setAttribute("aria-disabled", "true");
    say("Sent. The answer is on its way.");
  });
  addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-sent]")) {
      delete form.dataset.sent;
      for (const button of form.querySelectorAll("button")) button.removeAttribute("aria-disabled");
    }
  });

  // --- copying ---
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 1200);
      say("Copied.");
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      say("Selected: copy it with Ctrl+C.");
    }
  });

  // --- keys: "/" searches, Escape leaves a menu ---
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      document.querySelector(".search input")?.focus();
    }
    if (event.key === "Escape") for (const menu of document.querySelectorAll("details.menu[open]")) menu.open = false;
  });
})();
