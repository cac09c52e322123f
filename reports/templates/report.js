"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const openTo = (element) => {
    for (let e = element; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  };

  let clear = () => {}; // what a search has hidden

  // A link to something inside folds opens them, in every browser.
  const follow = () => {
    let target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch { return; }
    if (!target) return;
    if (target.closest("[hidden]")) clear();
    openTo(target);
    target.scrollIntoView({ block: target.tagName === "TR" ? "center" : "start" });
  };
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.getAttribute("href") === location.hash) follow();
  });
  if (location.hash) follow();

  const find = document.getElementById("find");
  if (!find) return;
  const bar = find.closest(".find");
  const told = bar.querySelector("output");
  const phases = all("details.phase");
  const scopes = all("details.scope");
  const rows = new Map(scopes.map((scope) => [scope, all("table.ops tbody tr", scope)]));
  const words = new Map();
  const text = (element) => {
    if (!words.has(element)) words.set(element, element.textContent.toLowerCase());
    return words.get(element);
  };
  let before = null; // which folds were open before the search
  const restore = () => {
    for (const scope of scopes) {
      scope.hidden = false;
      for (const row of rows.get(scope)) row.hidden = false;
    }
    if (before) for (const [fold, open] of before) fold.open = open;
    before = null;
    told.textContent = "";
  };
  const search = () => {
    const wanted = find.value.trim().toLowerCase();
    if (!wanted) return restore();
    before ??= [...phases, ...scopes].map((fold) => [fold, fold.open]);
    let found = 0, inside = 0;
    for (const scope of scopes) {
      const named = text(scope.querySelector("summary")).includes(wanted);
      let here = 0;
      for (const row of rows.get(scope)) {
        const hit = named || text(row).includes(wanted);
        row.hidden = !hit;
        here += hit;
      }
      scope.hidden = !here;
      scope.open = here > 0;
      found += here;
      inside += here > 0;
    }
    for (const phase of phases) phase.open = scopes.some((scope) => phase.contains(scope) && !scope.hidden);
    told.textContent = found
      ? `${found} operation${found === 1 ? "" : "s"} in ${inside} scope${inside === 1 ? "" : "s"}`
      : "nothing found";
  };
  let waiting = 0;
  clear = () => { find.value = ""; clearTimeout(waiting); restore(); };
  find.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(search, 80); });
  find.addEventListener("keydown", (event) => {
    if (event.key === "Escape") clear();
  });
  for (const button of all("button[data-fold]", bar)) {
    button.addEventListener("click", () => {
      const open = button.dataset.fold === "open";
      for (const scope of scopes) scope.open = open && !scope.hidden;
      if (open) for (const phase of phases) phase.open = true;
    });
  }
  bar.hidden = false;
})();
