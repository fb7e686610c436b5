# Lets the operator in over SSH. Runs at every start of the machine, so each step can be repeated.
$ErrorActionPreference = 'Stop'
$publicKey = '@PUBLIC_KEY@'

# Enables the built-in account if it is disabled and the image has no account for the operator. Its password is random and kept nowhere.
$builtIn = Get-LocalUser -Name 'Administrator' -ErrorAction SilentlyContinue
$ours = Get-LocalUser -Name 'capi' -ErrorAction SilentlyContinue
if (-not $ours -and $builtIn -and -not $builtIn.Enabled) {
    $bytes = New-Object byte[] 36
    $random = [System.Security.Cryptography.RandomNumberGenerator]::Create()
    $random.GetBytes($bytes)
    $random.Dispose()
    # The suffix meets every rule for the complexity of passwords.
    $password = ConvertTo-SecureString -AsPlainText -Force ([Convert]::ToBase64String($bytes) + 'aZ7!')
    Set-LocalUser -Name 'Administrator' -Password $password
    Enable-LocalUser -Name 'Administrator'
}

# Installs OpenSSH. Windows Update is not always available right after the first start.
for ($try = 1; -not (Get-Service -Name 'sshd' -ErrorAction SilentlyContinue); $try++) {
    if ($try -gt 10) { throw 'OpenSSH could not be installed' }
    if ($try -gt 1) { Start-Sleep -Seconds 5 }
    try { Add-WindowsCapability -Online -Name 'OpenSSH.Server~~~~0.0.1.0' | Out-Null } catch { Write-Warning $_ }
}
Set-Service -Name 'sshd' -StartupType Automatic
# The first start of sshd creates its configuration and its host keys.
Start-Service -Name 'sshd'

# Creates each firewall rule once.
function Open-Port([string]$displayName, [int]$port) {
    if (-not (Get-NetFirewallRule -DisplayName $displayName -ErrorAction SilentlyContinue)) {
        New-NetFirewallRule -DisplayName $displayName -Direction Inbound -Action Allow -Protocol TCP -LocalPort $port -EdgeTraversalPolicy Allow | Out-Null
    }
}
Open-Port 'ContainerLogsPort' 10250
Open-Port 'WindowsExporter' 9182
if (Get-NetFirewallRule -Name 'OpenSSH-Server-In-TCP' -ErrorAction SilentlyContinue) {
    Set-NetFirewallRule -Name 'OpenSSH-Server-In-TCP' -Enabled True -Profile Any
} else {
    New-NetFirewallRule -Name 'OpenSSH-Server-In-TCP' -DisplayName 'OpenSSH SSH Server (sshd)' -Direction Inbound -Action Allow -Protocol TCP -LocalPort 22 -Profile Any | Out-Null
}

# Allows keys and forbids passwords. sshd uses the first value of each setting.
$ssh = Join-Path $env:ProgramData 'ssh'
$config = Join-Path $ssh 'sshd_config'
for ($try = 1; $try -le 10 -and -not (Test-Path -Path $config); $try++) { Start-Sleep -Seconds 1 }
$others = @(Get-Content -Path $config | Where-Object { $_ -notmatch '^\s*#?\s*(PubkeyAuthentication|PasswordAuthentication)\s' })
Set-Content -Path $config -Encoding Ascii -Value (@('PubkeyAuthentication yes', 'PasswordAuthentication no') + $others)

# Authorizes the key in the file that sshd reads for administrators, and trusts only if nobody else may write to it. Once for each machine: the
# operator may have replaced the key since, and this script still has the old one. A file from the image may have the keys of another machine.
$authorized = Join-Path $ssh 'administrators_authorized_keys'
$record = Join-Path $ssh 'windows-node-pools-machine.txt'
$machine = (Get-CimInstance -ClassName Win32_ComputerSystemProduct).UUID
if ((Get-Content -Path $record -ErrorAction SilentlyContinue) -ne $machine) {
    Remove-Item -Path $authorized -Force -ErrorAction SilentlyContinue
    Set-Content -Path $authorized -Encoding Ascii -Value $publicKey
    icacls.exe $authorized /inheritance:r /grant '*S-1-5-32-544:F' '*S-1-5-18:F' | Out-Null
    if ($LASTEXITCODE -ne 0) { throw "icacls.exe has failed with $LASTEXITCODE" }
    Set-Content -Path $record -Encoding Ascii -Value $machine
}
Restart-Service -Name 'sshd'
