// Hands on a list: act in a dialog without leaving it, a note with Undo, keys, ticks that stay from page to page, local
// times. All works without: then an action leads to the page that asks, and from there to the page of the act.
(() => {
  "use strict";
  const all = (what, inside = document) => [...inside.querySelectorAll(what)];
  const made = (tag, props = {}, ...inside) => {
    const it = Object.assign(document.createElement(tag), props);
    it.append(...inside);
    return it;
  };
  const boxes = () => all("tbody input[name=ids]");
  const pageOf = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");
  const refresh = () => document.body.dispatchEvent(new CustomEvent("refresh"));

  // --- ticks stay from page to page, for this list in this tab ---
  const place = `ticked ${location.pathname}`;
  const MOST = 500; // as many as the server takes in one form
  const ticked = () => new Set(JSON.parse(sessionStorage.getItem(place) || "[]"));
  const keep = (ids) => {
    if (ids.size) sessionStorage.setItem(place, JSON.stringify([...ids].slice(0, MOST)));
    else sessionStorage.removeItem(place);
  };
  const elsewhere = () => {
    const here = new Set(boxes().map((box) => box.value));
    return [...ticked()].filter((id) => !here.has(id));
  };
  const drop = () => {
    keep(new Set());
    for (const box of boxes()) box.checked = false;
    show();
  };
  const show = () => {
    const label = document.getElementById("selected");
    if (!label) return;
    const others = elsewhere().length;
    const here = boxes().filter((box) => box.checked).length;
    for (const button of all("[data-selected]")) button.disabled = here + others === 0;
    label.textContent = others ? `${here + others} selected, ${others} on other pages:` : here ? `${here} selected:` : "Selected rows:";
    let clear = document.getElementById("drop");
    if (others && !clear) {
      clear = made("button", { id: "drop", type: "button", className: "small quiet", textContent: "Select none" });
      clear.addEventListener("click", drop);
      label.parentElement.append(clear);
    }
    if (!others) clear?.remove();
  };
  const note = () => {
    const ids = ticked();
    for (const box of boxes()) if (box.checked) ids.add(box.value); else ids.delete(box.value);
    keep(ids);
    show();
  };
  const again = () => {
    const ids = ticked();
    for (const box of boxes()) if (ids.has(box.value)) box.checked = true;
    show();
  };
  if (boxes().length) {
    again();
    document.addEventListener("change", (event) => { if (event.target.matches?.("tbody input[name=ids], [data-all]")) note(); });
    document.addEventListener("click", (event) => { if (event.target.closest?.("tbody input[name=ids]")) note(); });
    // Rows that left the list are selected no more; those on other pages still are.
    document.body.addEventListener("gone", (event) => { keep(new Set([...ticked()].filter((id) => !event.detail.includes(id)))); });
    document.body.addEventListener("htmx:after:swap", again);
  }

  // --- an action asks in a dialog; its result is a note with Undo ---
  let dialog = null;
  const close = () => { dialog?.close(); };
  const toast = (text, href, undo) => {
    document.getElementById("toast")?.remove();
    const box = made("div", { id: "toast", className: "toast" });
    box.setAttribute("role", "status");
    const words = href ? made("a", { href, textContent: text }) : made("span", { textContent: text });
    box.append(words);
    if (undo) {
      const button = made("button", { type: "button", className: "small", textContent: "Undo" });
      button.addEventListener("click", async () => {
        button.disabled = true;
        await told(await send(undo, new URLSearchParams()));
      });
      box.append(button);
    }
    const away = made("button", { type: "button", className: "small quiet", textContent: "Close" });
    away.addEventListener("click", () => box.remove());
    box.append(away);
    document.body.append(box);
  };
  const send = (path, body) => fetch(path, { method: "POST", body, headers: { Accept: "text/html" } });
  const told = async (answer) => {
    const page = await pageOf(answer);
    const deed = page.querySelector("[data-deed]");
    if (!deed) {
      ask(page, answer.url);
      return;
    }
    close();
    const undo = deed.querySelector("button") ? deed.querySelector("form").getAttribute("action") : null;
    const left = deed.querySelector("[data-left]");
    toast(deed.querySelector("h1").textContent + (left ? `; ${left.dataset.left} later ones left` : ""), answer.url, undo);
    keep(new Set());
    for (const box of boxes()) box.checked = false;
    document.querySelector("#toast a")?.focus(); // not in the list, which would then not refresh
    refresh();
    show();
  };
  const ask = (page, url) => {
    const card = page.querySelector("main section.card");
    if (!card) { location.assign(url); return; }
    if (!dialog) {
      dialog = made("dialog", { className: "asks" });
      dialog.addEventListener("close", () => { dialog.remove(); dialog = null; });
      document.body.append(dialog);
    }
    const heading = card.querySelector("h1");
    heading.id = "asked";
    dialog.setAttribute("aria-labelledby", "asked");
    dialog.replaceChildren(document.importNode(card, true));
    for (const it of all(".acts a.button", dialog)) {
      it.addEventListener("click", (event) => { event.preventDefault(); close(); });
    }
    dialog.querySelector("form")?.addEventListener("submit", async (event) => {
      event.preventDefault();
      const form = event.target;
      if (form.dataset.sent) return; // console.js marks a form that is on its way
      try {
        await told(await send(form.getAttribute("action"), new URLSearchParams(new FormData(form))));
      } catch {
        delete form.dataset.sent;
        for (const button of all("button", form)) button.removeAttribute("aria-disabled");
        toast("No answer. It may have been done: look at the audit log.", "audit");
      }
    });
    if (!dialog.open) dialog.showModal();
    (dialog.querySelector("[autofocus], input:not([type=hidden])") || dialog.querySelector("button"))?.focus();
  };
  const open = async (url) => {
    try {
      ask(await pageOf(await fetch(url, { headers: { Accept: "text/html" } })), url);
    } catch {
      location.assign(url);
    }
  };
  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (!button?.matches("[data-selected]")) return;
    event.preventDefault();
    const ids = new URLSearchParams([...boxes().filter((box) => box.checked).map((box) => box.value), ...elsewhere()].map((id) => ["ids", id]));
    open(`${button.getAttribute("formaction")}?${ids}`);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.(".rows .acts a.button, #live > .doing .acts a.button");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    open(link.href);
  });

  // --- keys: j and k go from row to row, x ticks, Enter opens ---
  const linkOf = (row) => row.querySelector("a[href*='/show?']") || row.querySelector("a[href]");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog) return;
    if (event.target.matches?.("input:not([type=checkbox]), select, textarea")) return;
    const rows = all("tbody tr");
    const row = document.activeElement?.closest("tbody tr");
    if (event.key === "j" || event.key === "k") {
      const next = rows.indexOf(row) + (event.key === "j" ? 1 : -1);
      const to = rows[row ? Math.min(Math.max(next, 0), rows.length - 1) : 0];
      if (!to) return;
      event.preventDefault();
      linkOf(to)?.focus();
      to.scrollIntoView({ block: "nearest" });
    }
    if (event.key === "x" && row) {
      event.preventDefault();
      row.querySelector("input[name=ids]")?.click();
    }
    if (event.key === "Enter" && row && event.target.matches?.("input[type=checkbox]")) {
      event.preventDefault();
      linkOf(row)?.click();
    }
  });

  // --- views: pages with their filters that this browser keeps under a name ---
  const VIEWS = 40;
  const views = () => {
    try {
      const kept = JSON.parse(localStorage.getItem("views"));
      return Array.isArray(kept) ? kept.filter((it) => typeof it?.name === "string" && /^\/(?![/\\])/.test(it.path)) : [];
    } catch {
      return []; // another program has written there
    }
  };
  const keepViews = (kept) => { localStorage.setItem("views", JSON.stringify(kept.slice(-VIEWS))); listViews(); };
  const here = () => location.pathname + location.search;
  const listViews = () => {
    const group = document.getElementById("views");
    if (!group) return;
    for (const it of all("nav li.view")) it.remove();
    const items = views().map(({ name, path }) => {
      const link = made("a", { href: path, textContent: name });
      if (path === here()) link.setAttribute("aria-current", "page");
      const away = made("button", { type: "button", className: "small quiet", textContent: "×", title: `Forget the view ${name}` });
      away.setAttribute("aria-label", away.title);
      away.addEventListener("click", () => keepViews(views().filter((it) => it.name !== name)));
      return made("li", { className: "view" }, link, away);
    });
    group.after(...items);
  };
  const nameView = () => {
    const field = made("input", { required: true, maxLength: 60, autocomplete: "off", value: views().find((it) => it.path === here())?.name || "" });
    const cancel = made("button", { type: "button", className: "quiet", textContent: "Cancel" });
    const form = made(
      "form", { className: "card" }, made("h1", { id: "asked", textContent: "Keep this view" }),
      made("p", { textContent: "This page with its filters, for this browser. To share it, send its address." }),
      made("label", {}, made("span", { textContent: "Name" }), field),
      made("p", { className: "acts" }, made("button", { textContent: "Keep" }), cancel));
    const box = made("dialog", { className: "asks" }, form);
    box.setAttribute("aria-labelledby", "asked");
    cancel.addEventListener("click", () => box.close());
    box.addEventListener("close", () => box.remove());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const name = field.value.trim();
      if (!name) return;
      keepViews([...views().filter((it) => it.name !== name && it.path !== here()), { name, path: here() }]);
      box.close();
    });
    document.body.append(box);
    box.showModal();
    field.select();
  };
  document.getElementById("keep-view")?.addEventListener("click", nameView);
  addEventListener("storage", (event) => { if (event.key === "views") listViews(); });
  listViews();

  // --- times: how long ago, or of here; the other, and UTC, beside it when it is pointed at ---
  const modes = ["ago", "local"];
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const mode = () => (localStorage.getItem("times") === "local" ? "local" : "ago");
  const pad = (n) => String(n).padStart(2, "0");
  const local = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const times = () => {
    for (const it of all("main time[datetime]")) {
      const at = new Date(it.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      if (!it.dataset.plain || !it.dataset.shown || it.textContent !== it.dataset.shown) it.dataset.plain = it.textContent;
      const utc = `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
      it.title = `${local(at)} ${zone}, ${utc}`;
      it.dataset.shown = mode() === "local" ? local(at) : it.dataset.plain;
      if (it.textContent !== it.dataset.shown) it.textContent = it.dataset.shown;
    }
  };
  const clock = document.getElementById("clock");
  const showClock = () => { if (clock) { clock.querySelector(".text").textContent = mode(); clock.title = `Times in ${zone}`; } };
  clock?.addEventListener("click", () => {
    localStorage.setItem("times", modes[1 - modes.indexOf(mode())]);
    showClock();
    times();
  });
  showClock();
  times();
  document.body.addEventListener("htmx:after:swap", times);

  // --- on a phone the fields of a filter are folded until they are wanted ---
  const narrow = matchMedia("(max-width: 56rem)");
  const fold = () => { for (const it of all("details.fold")) it.open = !narrow.matches || it.dataset.used === "yes"; };
  narrow.addEventListener("change", fold);
  fold();
})();
