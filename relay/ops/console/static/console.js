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

  // --- refresh: every few seconds, unless paused, hidden, or in the middle of something ---
  const pause = byId("pause");
  const updated = byId("updated");
  const live = () => document.querySelector("[hx-trigger*=' from:body']");
  const paused = () => localStorage.getItem("paused") === "yes";
  const selected = () => document.querySelectorAll("tbody input[name]:checked");
  const busy = () => selected().length > 0 || document.activeElement?.closest("#live") !== null;
  const say = (text, wrong) => {
    if (!updated) return;
    updated.textContent = text;
    updated.classList.toggle("wrong", Boolean(wrong));
  };
  const showPause = () => {
    if (!pause) return;
    pause.setAttribute("aria-pressed", String(paused()));
    pause.querySelector(".text").textContent = paused() ? "Paused" : "Live";
  };
  pause?.addEventListener("click", () => {
    localStorage.setItem("paused", paused() ? "no" : "yes");
    showPause();
  });
  showPause();
  if (pause && !live()) pause.hidden = true;
  let beats = 0;
  setInterval(() => {
    if (!live() || paused() || document.hidden || busy()) return;
    beats += 1;
    document.body.dispatchEvent(new CustomEvent("refresh"));
    if (beats % 6 === 0) document.body.dispatchEvent(new CustomEvent("slow"));
  }, 5000);
  document.body.addEventListener("htmx:response:error", () => say("The last refresh failed; trying again.", true));
  document.body.addEventListener("htmx:error", () => say("No answer; trying again.", true));
  // A refresh that was asked for before somebody began to select must not move the rows under their hand.
  document.body.addEventListener("htmx:before:swap", (event) => {
    if (event.target.id === "live" && busy()) event.preventDefault();
  });
  document.body.addEventListener("htmx:after:swap", () => { say(""); count(); });

  // --- the strip of pages of a narrow screen begins where we are ---
  const strip = document.querySelector("nav");
  const chosen = strip?.querySelector("[aria-current]");
  if (chosen) strip.scrollLeft = chosen.offsetLeft - strip.clientWidth / 2 + chosen.offsetWidth / 2;

  // --- selecting ---
  const count = () => {
    const many = selected().length;
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
