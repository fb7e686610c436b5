
# EC2Launch v2 from 2.0.2107 on can keep the routes to Amazon's own services when the network of the node is changed.
$launch = Join-Path $env:ProgramFiles 'Amazon\EC2Launch\EC2Launch.exe'
$installed = [version]'0.0'
if (Test-Path -Path $launch) {
    $said = [regex]::Match((& $launch version), '\d+(\.\d+)+').Value
    if ($said) { $installed = [version]$said }
}
if ($installed -lt [version]'2.0.2107') {
    [Net.ServicePointManager]::SecurityProtocol = [Net.SecurityProtocolType]::Tls12
    $installer = Join-Path $env:TEMP 'AmazonEC2Launch.msi'
    Invoke-WebRequest -UseBasicParsing -OutFile $installer -Uri 'https://s3.amazonaws.com/amazon-ec2launch-v2/windows/amd64/latest/AmazonEC2Launch.msi'
    $signature = Get-AuthenticodeSignature -FilePath $installer
    if ($signature.Status -ne 'Valid' -or $signature.SignerCertificate.Subject -notmatch 'Amazon') {
        throw 'the installer of EC2Launch is not signed by Amazon'
    }
    $setup = Start-Process -FilePath 'msiexec.exe' -ArgumentList '/i', "`"$installer`"", '/quiet', '/norestart' -Wait -PassThru
    if ($setup.ExitCode -notin 0, 3010) { throw "the installer of EC2Launch has failed with $($setup.ExitCode)" }
}
& $launch run-task add-routes --persistent
