'use strict';
/* A button in the corner of every block of code, which copies its text. */
document.addEventListener('DOMContentLoaded', () => {
  for (const block of document.querySelectorAll('div.highlight')) {
    const button = document.createElement('button');
    button.type = 'button';
    button.className = 'copy';
    button.textContent = 'copy';
    button.addEventListener('click', async () => {
      try {
        await navigator.clipboard.writeText(block.querySelector('pre').textContent);
        button.textContent = 'copied';
      } catch {
        getSelection().selectAllChildren(block.querySelector('pre')); // a page that is a file: the reader copies it
        button.textContent = 'selected';
      }
      setTimeout(() => { button.textContent = 'copy'; }, 1500);
    });
    block.append(button);
  }
});
