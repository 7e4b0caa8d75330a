// While a compaction is requested or under way the page's main part is asked for again, and what the server tells of
// the run (server-sent events) moves the bar. Without this script a page loads itself again.
"use strict";

(() => {
  const POLL_MS = 1000;

  async function swap() {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details[open][id]")].map((item) => item.id);
    const focused = document.activeElement?.id;
    for (const id of ["live", "picture", "runs"]) {
      const now = document.getElementById(id);
      const next = page.getElementById(id);
      if (now && next) now.replaceWith(document.adoptNode(next));
    }
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    explore();
    if (focused) document.getElementById(focused)?.focus();
    follow();
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
      setTimeout(swap, POLL_MS);
      return;
    }
    const events = new EventSource(`/dashboard/runs/${live.dataset.run}/events`);
    events.addEventListener("progress", (event) => show(JSON.parse(event.data)));
    const ended = () => {
      events.close();
      setTimeout(swap, POLL_MS);
    };
    events.addEventListener("end", ended);
    events.addEventListener("error", ended);
  }

  // The numbers of a slice of the picture, by the pointer or by the keys of the slider below it.
  function choose(picture, index) {
    const slices = picture.querySelectorAll(".slice");
    const numbers = slices[index]?.querySelector("title").textContent;
    if (!numbers) return;
    picture.querySelector(".chosen")?.classList.remove("chosen");
    slices[index].classList.add("chosen");
    const slider = picture.querySelector("#slice");
    slider.value = index;
    slider.setAttribute("aria-valuetext", numbers);
    picture.querySelector("#slice-numbers").textContent = numbers;
  }

  function explore() {
    const picture = document.getElementById("picture");
    const slider = document.getElementById("slice");
    if (!picture || !slider) return;
    slider.hidden = false;
    slider.addEventListener("input", () => choose(picture, Number(slider.value)));
    slider.addEventListener("focus", () => choose(picture, Number(slider.value)));
    picture.querySelectorAll(".slice").forEach((slice, index) => {
      slice.addEventListener("pointerenter", () => choose(picture, index));
    });
  }

  // Buttons that copy a text of the page: shown where the browser lets a page write to the clipboard.
  function copyable() {
    if (!navigator.clipboard) return;
    document.querySelectorAll("button[data-copy]").forEach((button) => {
      const label = button.textContent;
      button.hidden = false;
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
          button.textContent = "Copied";
        } catch {
          button.textContent = "The browser refused to copy";
        }
        setTimeout(() => (button.textContent = label), 2000);
      });
    });
  }

  explore();
  follow();
  copyable();
})();
