// Filters the list of the browse page, and lets a keyboard reach what scrolls. No framework, nothing is fetched.
"use strict";

function matches(item, wanted) {
  for (const [name, value] of Object.entries(wanted)) {
    if (!value) continue;
    const held = item.dataset[name] || "";
    if (name === "text") {
      if (!value.toLowerCase().split(/\s+/).every((word) => held.includes(word))) return false;
    } else if (!held.split(" ").includes(value)) {
      return false;
    }
  }
  return true;
}

function startFilter(form) {
  const list = document.querySelector("[data-ac-list]");
  const count = document.querySelector(".ac-count");
  if (!list || !count) return;
  const items = [...list.children];

  function read() {
    return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
  }

  function apply() {
    const wanted = read();
    let shown = 0;
    for (const item of items) {
      const fits = matches(item, wanted);
      item.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    count.textContent = shown === items.length ? `${shown} principles` : `${shown} of ${items.length} principles`;
    const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value)).toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
  }

  for (const [name, value] of new URLSearchParams(location.search)) {
    const field = form.elements.namedItem(name);
    if (field) field.value = value;
  }
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply));
  form.addEventListener("submit", (event) => event.preventDefault());
  if (location.search) apply();
}

// What scrolls must be reachable without a mouse, and a scrolling table has a name of its own.
function reachScrolling() {
  const headings = [...document.querySelectorAll("article h1, article h2, article h3")];
  let number = 0;
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap, .ac-matrix")) {
    number += 1;
    if (region.scrollWidth <= region.clientWidth + 1) continue;
    const before = headings.filter((h) => h.compareDocumentPosition(region) & Node.DOCUMENT_POSITION_FOLLOWING);
    const heading = before.length ? before[before.length - 1].firstChild.textContent : "";
    region.tabIndex = 0;
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", `Table ${number}: ${heading}`);
  }
  for (const region of document.querySelectorAll(".md-typeset pre > code, .md-sidebar__scrollwrap")) {
    if (region.scrollWidth > region.clientWidth + 1 || region.scrollHeight > region.clientHeight + 1) region.tabIndex = 0;
  }
}

document.addEventListener("DOMContentLoaded", () => {
  // The theme's search is a dialog without a name.
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  document.querySelectorAll("form.ac-filter").forEach(startFilter);
  reachScrolling();
  addEventListener("resize", reachScrolling);
});
