// While a compaction is requested or under way the page's main part is asked for again, and what the server tells of
// the run (server-sent events) moves the bar. Without this script a page loads itself again.
"use strict";

(() => {
  const POLL_MS = 1000;

  async function swap() {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (!answer || answer.status >= 500) {
      setTimeout(swap, interval() || POLL_MS); // the service is busy, or starts again
      return;
    }
    if (!answer.ok) return;
    if (answer.redirected) {
      location.assign(answer.url); // the token has expired, or another tab has logged out
      return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details[open][id]")].map((item) => item.id);
    const focused = document.activeElement;
    for (const id of ["status", "live", "sizes", "picture", "runs"]) {
      const now = document.getElementById(id);
      const next = page.getElementById(id);
      if (now && next) now.replaceWith(document.adoptNode(next));
    }
    if (!page.getElementById("done")) document.getElementById("done")?.remove(); // "requested", after the run
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    const focusedNow = focused?.id ? document.getElementById(focused.id) : null;
    if (focusedNow?.type === "range") focusedNow.value = focused.value;
    explore();
    focusedNow?.focus();
    follow();
  }

  // The first page shows other topics, too, so it has an interval, and is also replaced while its run is active.
  function interval() {
    return Number(document.getElementById("live")?.dataset.pollMs ?? 0);
  }

  function show(run) {
    const bar = document.getElementById("progress");
    const label = document.getElementById("progress-label");
    if (!bar || !label) return;
    if (run.tasks_total) {
      bar.max = run.tasks_total;
      bar.value = run.tasks_done ?? 0;
    }
    label.textContent = `Compaction ${run.run}, ${run.phase}`;
  }

  function follow() {
    const live = document.getElementById("live");
    if (!live || live.dataset.busy !== "true") return;
    if (!live.dataset.run) {
      setTimeout(swap, interval() || POLL_MS);
      return;
    }
    const begun = performance.now();
    const events = new EventSource(`/dashboard/runs/${live.dataset.run}/events`);
    const ended = () => {
      events.close();
      setTimeout(swap, POLL_MS);
    };
    events.addEventListener("progress", (event) => {
      show(JSON.parse(event.data));
      if (interval() && performance.now() - begun > interval()) ended();
    });
    events.addEventListener("end", ended);
    events.addEventListener("error", ended);
  }

  // The numbers of a slice of a drawing, by the pointer or by the keys of the slider below it.
  function choose(figure, index) {
    const columns = [...figure.querySelectorAll("svg.columns, svg.panel")].map((drawing) => drawing.querySelectorAll(".slice")[index]);
    const numbers = columns[0]?.querySelector("title").textContent;
    if (!numbers) return;
    figure.querySelectorAll(".chosen").forEach((column) => column.classList.remove("chosen"));
    columns.forEach((column) => column.classList.add("chosen"));
    const slider = figure.querySelector("input");
    slider.value = index;
    slider.setAttribute("aria-valuetext", numbers);
    figure.querySelector("output").textContent = numbers;
  }

  function explore() {
    for (const figure of document.querySelectorAll("figure.explore")) {
      const slider = figure.querySelector("input");
      slider.hidden = false;
      choose(figure, Number(slider.value));
      for (const event of ["input", "focus"]) {
        slider.addEventListener(event, () => choose(figure, Number(slider.value)));
      }
      for (const drawing of figure.querySelectorAll("svg.columns, svg.panel")) {
        drawing.querySelectorAll(".slice").forEach((slice, index) => {
          slice.addEventListener("pointerenter", () => choose(figure, index));
        });
      }
    }
  }

  // Buttons that copy `data-text`, or the text of the element that `data-copy` names; without scripts they are hidden.
  // `navigator.clipboard` exists only over https and on loopback.
  function copyable() {
    document.documentElement.classList.add("scripted");
    document.addEventListener("click", async (event) => {
      const button = event.target.closest("button[data-copy], button[data-text]");
      if (!button || button.classList.contains("done")) return;
      const text = button.dataset.text ?? document.getElementById(button.dataset.copy).textContent;
      const [label, name] = [button.textContent, button.getAttribute("aria-label")];
      button.classList.add("done");
      button.removeAttribute("aria-label");
      button.textContent = (await written(text)) ? "Copied" : "The browser refused to copy";
      setTimeout(() => {
        button.classList.remove("done");
        button.textContent = label;
        if (name) button.setAttribute("aria-label", name);
      }, 2000);
    });
  }

  async function written(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const focused = document.activeElement;
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      const succeeded = document.execCommand("copy");
      field.remove();
      focused?.focus();
      return succeeded;
    }
  }

  explore();
  follow();
  copyable();
})();
